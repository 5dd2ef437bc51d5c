"""Any recipe on real hosts: clients keep their data and what is their own, messages go by Flower (extra `flower`)."""
