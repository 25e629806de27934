// Package assigner is the service that assigns a shard to every new object, in the same write that creates the object.
//
// Every replica serves the admission webhook and keeps its own state: package rings follows ClusterRings and Leases, package
// admission decides, and package webhook answers. Package certs, which ringquery also uses, maintains the certificate. The leader
// also registers the webhook with the API server (package registration). The assigner never refuses a user's write: the rebalancer
// finds the objects that the assigner misses.
// objects that the assigner misses are found by the rebalancer.
package assigner
