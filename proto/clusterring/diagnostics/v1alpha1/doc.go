// Package diagnosticsv1alpha1 is the API that answers which shard owns an object, and why: the messages, client, and
// server of clusterring.diagnostics.v1alpha1.
//
// Everything except this file and audience.go is generated from the .proto files in this directory, which document
// every message and field. The package makes no decisions.
package diagnosticsv1alpha1
