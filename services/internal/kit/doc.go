// Package kit gives every service the same startup, serving, health reporting, and shutdown.
//
// A service describes itself with a [Service]. [NewCommand] turns it into a command with help, validated flags, a connection to
// the API server, structured logs, metrics, probes, and leader election. [Main] runs the command and handles the signals of the
// operating system.
//
// # What always holds
//
//  1. A mistake of the operator (flag, kubeconfig, unreachable server, missing CRD, port in use) results in one line on
//     stderr that says what to do, and in exit code 1. Until then, nothing has been served or written.
//  2. /readyz passes only while the caches are filled, the service's own checks pass, and the service was not told to stop.
//  3. The leader Lease is released only after the last worker of this process has ended. If workers are stuck, or leadership
//     is lost while they work, the process ends without touching the Lease, and the next leader waits for it to expire.
//  4. Every stop is bounded by --shutdown-delay plus --shutdown-grace. A second signal ends the process immediately.
//
// # Start and stop
//
// Start: flags, ports, API server, CRD, Setup, caches, then leader election, then controllers.
//
// Stop: report not ready (Draining closes), wait --shutdown-delay so that load balancers react while requests are still served,
// stop controllers and then caches, webhooks, and HTTP servers, release the leader Lease, exit.
// served, stop controllers and then caches, webhooks and HTTP servers, release the leader Lease, exit.
package kit
