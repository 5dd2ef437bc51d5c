"""What a federation is: the states of server and clients, where they are kept, what is sent of them."""
