package kit

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Service describes a service to [NewCommand]. Name and Setup are required; everything else has a useful zero value.
type Service struct {
	// Name of the binary, and so of the leader Lease, of the user agent and of the field manager.
	Name string
	// Short, Long and Example are the help texts: one line, what it reads, decides and writes, and commands to copy.
	Short, Long, Example string
	// LeaderElection says that at most one replica runs the controllers. It adds the --leader-elect flags.
	// What must run in every replica (a webhook, a server) says so by NeedLeaderElection() false.
	LeaderElection bool
	// AddFlags adds the service's own flags. A flag whose name ends in "bind-address" is a listening address: its
	// value is checked, and that it is free, before anything starts.
	AddFlags func(flags *pflag.FlagSet)
	// Validate checks the service's own flags once they are parsed. Its error is shown with a hint to --help.
	Validate func() error
	// Configure may change the manager's options, for example what is cached. It cannot change how the service stops.
	Configure func(options *manager.Options)
	// Setup adds the service's controllers, servers and checks to rt.Manager. It runs once, before the caches start;
	// an error ends the command. ctx ends when the manager is told to stop, which is --shutdown-delay after Draining.
	Setup func(ctx context.Context, rt *Runtime) error
}

// Runtime is what a running service works with. It is made by the kit and handed to [Service.Setup].
type Runtime struct {
	// Manager runs whatever Setup adds to it.
	Manager manager.Manager
	// Options are the common flags, validated.
	Options *Options
	// Log carries the service's name.
	Log logr.Logger
	// Clock is the real clock; pass it on, so that tests can pass another.
	Clock clock.WithTicker

	draining <-chan struct{}
	checks   []namedCheck // what /readyz asks
}

// namedCheck is a part of /readyz.
type namedCheck struct {
	name  string
	check healthz.Checker
}

// Draining returns a channel that closes as soon as the service is told to stop. From then on /readyz fails, while
// requests are still served for --shutdown-delay. Safe for concurrent use.
func (rt *Runtime) Draining() <-chan struct{} { return rt.draining }

// AddReady makes /readyz depend on check as well; name shows up in /readyz?verbose. Call it within Setup. It panics once
// the service has started: a check that nobody asks would be a readiness that lies.
func (rt *Runtime) AddReady(name string, check healthz.Checker) {
	if err := rt.Manager.AddReadyzCheck(name, check); err != nil {
		panic(fmt.Sprintf("kit: readiness check %q was added after Setup: %v", name, err))
	}
	rt.checks = append(rt.checks, namedCheck{name, check})
}

// Ready returns nil exactly while /readyz passes, and otherwise why it does not. It serves health protocols other than
// HTTP. Call it after Setup; it is then safe for concurrent use.
func (rt *Runtime) Ready() error {
	for _, c := range rt.checks {
		if err := c.check(&http.Request{}); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}
