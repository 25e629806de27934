// Package diagnosticsv1alpha1 is the API that answers who owns what, and why: messages, client and server of
// clusterring.diagnostics.v1alpha1.
//
// All but this file is generated from the .proto files beside it, which document every message and field. The package
// decides nothing.
package diagnosticsv1alpha1
