"""The sessions of Hermes, an agent of Nous Research."""
