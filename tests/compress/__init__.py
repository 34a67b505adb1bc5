"""How compress decides, divides and keeps, without any store or model."""
