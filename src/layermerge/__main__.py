"""`python -m layermerge` is the command line."""

from layermerge.cli import main

if __name__ == "__main__":
    main()
