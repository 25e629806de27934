package assigner
