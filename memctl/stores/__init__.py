"""One file a layout.  Stores know the contract (``memctl.store``) and never each other."""
