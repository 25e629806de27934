// Package assigner is the service that gives every new object its shard, in the very write that creates it.
//
// Every replica serves the admission webhook and keeps its own state: package rings follows ClusterRings and Leases,
// package admission decides, package webhook answers; package certs, which ringquery uses as well, keeps the certificate. The
// leader also registers the webhook with the API server (package registration). Nothing here ever refuses a user's write:
// objects that the assigner misses are found by the rebalancer.
package assigner
