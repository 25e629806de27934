// Package celcheck checks that the CEL expression of a key's hash and the Go code compute the same hash, in the CEL
// environment of a real API server. It contains only tests. It is a separate module, so that the services do not depend
// on the libraries of the API server.
package celcheck
