import sys, fnmatch, torch
from sweep.networks import all_networks
from sweep.examination import examine
torch.set_num_threads(1)
import time
for n,net in all_networks().items():
    if fnmatch.fnmatchcase(n,sys.argv[1]):
        t=time.time(); f=examine(net); print(time.time()-t, f.model_dump_json(indent=1), flush=True)
