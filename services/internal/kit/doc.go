// Package kit is how every service starts, serves, reports health and stops.
//
// A service describes itself by a [Service]; [NewCommand] turns it into a command with help, checked flags, a connection
// to the API server, structured logs, metrics, probes and leader election; [Main] runs the command under the signals of
// the operating system.
//
// # What always holds
//
//  1. A mistake of the operator (flag, kubeconfig, unreachable server, missing CRD, taken port) is one line on stderr
//     that says what to do, and exit code 1; nothing has been served or written by then.
//  2. /readyz passes only while the caches are filled, the service's own checks pass, and nobody has told it to stop.
//  3. The leader Lease is released only when no worker of this process is left. If workers are stuck, or leadership
//     is lost while they work, the process ends without touching the Lease, and the next leader waits for it to expire.
//  4. Every stop is bounded: by --shutdown-delay plus --shutdown-grace, and at once by a second signal.
//
// # Start and stop
//
// Start: flags, ports, API server, CRD, Setup, caches, then leader election, then controllers.
//
// Stop: not ready (Draining closes), wait --shutdown-delay so that load balancers look elsewhere while requests are still
// served, stop controllers and then caches, webhooks and HTTP servers, release the leader Lease, exit.
package kit
