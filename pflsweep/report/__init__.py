"""Tables and figures made from record folders.

Nothing here needs MLflow. methods.py and site.py load the methods' classes; everything else needs neither Hydra nor
torch.
"""
