from sweep.results import Results
def write_page(results: Results) -> None:
    pass
