import torch

torch.set_num_threads(1)  # A second thread makes models this small ten times slower
