"""What any kind of store may use, plugins too."""
