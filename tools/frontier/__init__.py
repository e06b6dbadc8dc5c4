"""What frontier.py is made of: the model under study, number formats, and one module for each family of methods."""
