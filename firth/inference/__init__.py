"""A loaded model and its answers. `model.Model` is the only way to predict; the server and the command line use it."""
