// Package celcheck checks that the CEL expression for a key's hash means what the Go code means, in the CEL environment
// of a real API server. It has tests only, and is a module of its own so that the API server's libraries stay away from
// the services.
package celcheck
