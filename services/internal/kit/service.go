// Package kit gives every service the same startup, serving, health reporting, and shutdown.
//
// A service describes itself with a [Service]. [NewCommand] turns it into a command with help, validated flags, a
// connection to the API server, structured logs, metrics, probes, and leader election. [Main] runs the command and
// handles the signals of the operating system.
//
// # What always holds
//
//  1. A mistake of the operator (flag, kubeconfig, unreachable server, missing CRD) results in one line on
//     stderr that says what to do, and in exit code 1. Until then, nothing has been served or written.
//  2. /readyz passes only while the caches are filled, the service's own checks pass, and the service was not told to
//     stop.
//  3. The leader Lease is released only after the last worker of this process has ended. If workers are stuck, or
//     leadership is lost while they work, the process ends without touching the Lease, and the next leader waits for it
//     to expire.
//  4. Every stop is bounded by --shutdown-delay plus --shutdown-grace. A second signal ends the process immediately.
//
// # Start and stop
//
// Start: flags, API server, CRD, Setup, caches, then leader election, then controllers.
//
// Stop: report not ready (Draining closes), wait --shutdown-delay so that load balancers react while requests are still
// served, stop controllers and then caches, webhooks, and HTTP servers, release the leader Lease, exit.
package kit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Service describes a service to [NewCommand]. Name and Setup are required; everything else has a useful zero value.
type Service struct {
	// Name is the name of the binary, and therefore of the leader Lease, the user agent, and the field manager.
	Name string
	// Short, Long, and Example are the help texts: one line; what the service reads, decides, and writes; and commands to
	// copy.
	Short, Long, Example string
	// LeaderElection lets at most one replica run the controllers, and adds the --leader-elect flags. Runnables that must
	// run in every replica (a webhook, a server) return false from NeedLeaderElection().
	LeaderElection bool
	// AddFlags adds the service's own flags.
	AddFlags func(flags *pflag.FlagSet)
	// Validate checks the service's own flags after they are parsed. Its error is shown with a hint to --help.
	Validate func() error
	// Configure may change the manager's options, for example what is cached. It gets the validated common flags, and
	// cannot change how the service stops.
	Configure func(common *Options, options *manager.Options)
	// Setup adds the service's controllers, servers, and checks to rt.Manager. It runs once, before the caches start. An
	// error ends the command. ctx ends when the manager is told to stop, which is --shutdown-delay after Draining.
	Setup func(ctx context.Context, rt *Runtime) error
}

// Runtime is the environment of a running service. The kit creates it and passes it to [Service.Setup].
type Runtime struct {
	// Manager runs whatever Setup adds to it.
	Manager manager.Manager
	// Options are the common flags, validated.
	Options *Options
	// Log carries the service's name.
	Log logr.Logger
	// Clock is the real clock. Pass it on, so that tests can pass another one.
	Clock clock.WithTickerAndDelayedExecution

	draining <-chan struct{}
	checks   []namedCheck // what /readyz asks
	// embedding is how the service is embedded into another program; nil for a process of its own.
	embedding *Embedding
}

// Embedded reports whether the service runs inside another program, for one ring. Everything that the manager reads is
// then restricted to it.
func (rt *Runtime) Embedded() bool { return rt.embedding != nil }

// Ungated returns how to reach the API server for requests that a process may send which does not lead. They must
// decide nothing.
func (rt *Runtime) Ungated() *rest.Config {
	if rt.embedding == nil {
		return rt.Manager.GetConfig()
	}

	return rt.embedding.Config
}

// Live returns a reader of the API server, without a cache.
func (rt *Runtime) Live() client.Reader {
	if rt.embedding == nil {
		return rt.Manager.GetAPIReader()
	}

	return oneNamespace{rt.Manager.GetAPIReader(), rt.embedding.Namespace}
}

// Leader returns the name of the leader Lease of the service with the given name.
func (rt *Runtime) Leader(service string) types.NamespacedName {
	if rt.embedding != nil {
		service = rt.embedding.Name
	}

	return types.NamespacedName{Namespace: rt.Options.Namespace, Name: service}
}

// namedCheck is a part of /readyz.
type namedCheck struct {
	name  string
	check healthz.Checker
}

// Draining returns a channel that closes as soon as the service is told to stop. From then on, /readyz fails, while
// requests are still served for --shutdown-delay. It is safe for concurrent use.
func (rt *Runtime) Draining() <-chan struct{} { return rt.draining }

// AddReady adds a check to /readyz. The name appears in /readyz?verbose. Call it in Setup. It panics after the service
// has started, because a check that is never called would make readiness misleading.
func (rt *Runtime) AddReady(name string, check healthz.Checker) {
	if err := rt.Manager.AddReadyzCheck(name, check); err != nil {
		panic(fmt.Sprintf("kit: readiness check %q was added after Setup: %v", name, err))
	}

	rt.checks = append(rt.checks, namedCheck{name, check})
}

// Until returns a check that fails until the condition holds, for the given reason.
func Until(holds func() bool, otherwise string) healthz.Checker {
	return func(*http.Request) error {
		if holds() {
			return nil
		}

		return errors.New(otherwise)
	}
}

// Ready returns nil exactly while /readyz passes, and otherwise the reason why it does not. It serves health protocols
// other than HTTP. Call it after Setup. It is then safe for concurrent use.
func (rt *Runtime) Ready() error {
	for _, c := range rt.checks {
		if err := c.check(&http.Request{}); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}

	return nil
}
