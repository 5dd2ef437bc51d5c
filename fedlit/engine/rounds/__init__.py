"""What a round does: visit clients, check what they bring, agree on a new state, let the server train."""
