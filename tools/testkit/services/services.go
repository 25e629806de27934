// Package services runs the four services, shards, and other programs as processes on this machine. Each service and
// shard has the permissions of its service account and its own ports.
package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/proxy"
)

// Names of the services: of their binaries, and of their service accounts in the system namespace.
const (
	LeaseMonitor = "leasemonitor"
	Assigner     = "assigner"
	Rebalancer   = "rebalancer"
	RingQuery    = "ringquery"
)

// All are the names of the services.
var All = []string{LeaseMonitor, Assigner, Rebalancer, RingQuery}

// BuildHint says where the binaries of services come from.
const BuildHint = "run make build, or set --bin-dir"

// SettlePeriod is a short --settle-period for the rebalancer: the time between a change of shards and the last pass.
const SettlePeriod = time.Second

// stopTimeout limits the time for a graceful stop.
const stopTimeout = 20 * time.Second

// Webhook returns the arguments of an assigner that listens on one address, and is called by the API server at another
// or the same address.
func Webhook(listens, called string) []string {
	return []string{"--webhook-bind-address=" + listens, "--webhook-mode=url", "--webhook-url=https://" + called}
}

// OpenQueries returns the arguments of a ringquery without TLS and authentication.
func OpenQueries(address string) []string {
	return []string{"--grpc-bind-address=" + address, "--plaintext", "--authentication=none"}
}

// Spec is a service or a shard.
type Spec struct {
	// Name is the name of the process, Binary the name of its program.
	Name, Binary string
	// Namespace and Account identify the service account; empty for the account of the service. With an account, the
	// process has the identity of a Pod with the process's name.
	Namespace, Account string
	// Args are arguments in addition to the common ones. More, unless nil, returns further ones for each life.
	Args []string
	More func() []string
}

// Options configure a Group.
type Options struct {
	Plane *localplane.Plane
	// BinDir contains the binaries, LogDir the logs.
	BinDir, LogDir string
	// Profile makes services and shards serve profiles.
	Profile bool
	// Proxies puts a proxy between each service or shard and the API server.
	Proxies bool
	// Again is the pause before a service or shard that exited by itself is started again. Zero means that it is not.
	Again time.Duration
	// ShownLines is the number of log lines in errors that a process has caused.
	ShownLines int
}

// Addresses are the listen addresses of a service or a shard.
type Addresses struct {
	Health, Metrics string
	// Profiles is empty without [Options].Profile.
	Profiles string
}

// Member is a service or a shard, whether it runs or not. It is safe for concurrent use.
type Member struct {
	Spec
	Addresses
	// Proxy exists with [Options].Proxies.
	Proxy *proxy.Proxy

	group *Group
	args  []string
}

// Process returns the latest process; nil before the first start.
func (m *Member) Process() *process.Process { return m.group.Process(m.Name) }

// Lives returns the lives of all processes so far.
func (m *Member) Lives() []process.Life {
	var lives []process.Life

	for _, p := range m.group.Started() {
		if p.Name == m.Name {
			lives = append(lives, p.Lives()...)
		}
	}

	return lives
}

// Group is a group of services, shards, and other programs. Create it with [New]. It is safe for concurrent use, except
// Stop, which must be called last.
type Group struct {
	options Options
	death   chan error

	accounts    sync.Mutex        // held while a kubeconfig is made
	kubeconfigs map[string]string // by namespace and name of the account

	mu      sync.Mutex
	members []*Member
	started []*process.Process
}

// New returns an empty group.
func New(o Options) *Group {
	return &Group{options: o, death: make(chan error, 1), kubeconfigs: map[string]string{}}
}

// Start adds services or shards, starts all of them, and waits until they are ready.
func (g *Group) Start(ctx context.Context, specs ...Spec) error {
	var names []string

	for _, s := range specs {
		if _, err := g.Add(ctx, s); err != nil {
			return err
		}

		names = append(names, s.Name)
	}

	return g.Resume(ctx, names...)
}

// Add adds a service or a shard, with its kubeconfig and its ports, and does not start it yet.
func (g *Group) Add(ctx context.Context, s Spec) (*Member, error) {
	const ports = 3

	free, err := process.FreePorts(ports)
	if err != nil {
		return nil, err
	}

	m := &Member{group: g, Spec: s, Addresses: Addresses{Health: free[0], Metrics: free[1]}}
	if g.options.Proxies {
		m.Proxy, err = proxy.Start(g.options.Plane.Config, unimportant)
		if err != nil {
			return nil, err
		}
	}

	g.mu.Lock()
	g.members = append(g.members, m)
	g.mu.Unlock()

	kubeconfig, err := g.Authenticate(ctx, m)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err) //nolint:wrapcheck // each has the reason
	}

	m.args = []string{
		"--kubeconfig=" + kubeconfig, "--log-format=json", "--health-probe-bind-address=" + m.Health,
		"--metrics-bind-address=" + m.Metrics,
	}
	if g.options.Profile {
		m.Profiles = free[2]
		m.args = append(m.args, "--pprof-bind-address="+m.Profiles)
	}

	m.args = append(m.args, s.Args...)

	return m, nil
}

// unimportant reports whether a write does not affect objects: an event, or leader election.
func unimportant(write proxy.Write) bool {
	return write.Resource == "events" || write.Resource == "leases" && write.Namespace == localplane.SystemNamespace
}

// Authenticate writes the kubeconfig of a service or a shard, and returns its path. For a shard whose Pod was deleted,
// it creates another Pod.
func (g *Group) Authenticate(ctx context.Context, m *Member) (path string, err error) {
	if m.Account == "" {
		path, err = g.Kubeconfig(ctx, localplane.SystemNamespace, m.Binary)
	} else {
		path, err = g.options.Plane.PodKubeconfig(ctx, m.Namespace, m.Account, m.Name)
	}

	if err != nil || m.Proxy == nil {
		return path, err
	}
	// In the directory of the control plane, by which localplane.RemoveState finds the processes of a killed parent.
	through := filepath.Join(g.options.Plane.Dir(), "kubeconfig", "proxy-"+m.Name+".yaml")

	return through, m.Proxy.Kubeconfig(path, through)
}

// Kubeconfig returns the path of the kubeconfig of an existing service account.
func (g *Group) Kubeconfig(ctx context.Context, namespace, account string) (string, error) {
	g.accounts.Lock()
	defer g.accounts.Unlock()

	name := namespace + "/" + account
	if g.kubeconfigs[name] == "" {
		path, err := g.options.Plane.ServiceAccountKubeconfig(ctx, namespace, account)
		if err != nil {
			return "", err
		}

		g.kubeconfigs[name] = path
	}

	return g.kubeconfigs[name], nil
}

// Resume starts stopped services or shards again, and waits until they are ready.
func (g *Group) Resume(ctx context.Context, names ...string) error { return g.resume(ctx, names) }

// Restart stops a service, starts it with additional arguments, and returns when it is ready.
func (g *Group) Restart(ctx context.Context, name string, more ...string) error {
	if err := g.End(name); err != nil {
		return err
	}

	return g.resume(ctx, []string{name}, more...)
}

func (g *Group) resume(ctx context.Context, names []string, more ...string) error {
	for _, name := range names {
		m := g.Member(name)
		if m == nil {
			return fmt.Errorf("there is no service %s on this machine", name)
		}

		if err := g.Begin(m, more...); err != nil {
			return err
		}
	}

	for _, name := range names {
		if err := g.awaitReady(ctx, g.Process(name), g.readiness(name)); err != nil {
			return err
		}
	}

	return nil
}

// Member returns a service or a shard; nil if there is none of this name.
func (g *Group) Member(name string) *Member {
	for _, m := range g.Members() {
		if m.Name == name {
			return m
		}
	}

	return nil
}

// Begin starts a service or a shard, and does not wait.
func (g *Group) Begin(m *Member, more ...string) error {
	_, err := g.launch(process.Spec{
		Name: m.Name, Path: filepath.Join(g.options.BinDir, m.Binary), Args: slices.Concat(m.args, more), More: m.More,
		LogFile: g.LogFile(m.Name), Again: g.options.Again,
	})

	return err
}

// Launch starts another program, and returns when it is ready.
func (g *Group) Launch(ctx context.Context, spec process.Spec, r process.Readiness) error {
	spec.LogFile = g.LogFile(spec.Name)

	p, err := g.launch(spec)
	if err != nil {
		return err
	}

	return g.awaitReady(ctx, p, r)
}

func (g *Group) launch(spec process.Spec) (*process.Process, error) {
	g.mu.Lock() // held until the process is known
	defer g.mu.Unlock()

	p, err := process.Start(spec, func(p *process.Process) {
		select {
		case g.death <- g.blame(p, fmt.Errorf("%s has ended by itself: %w", p.Name, p.End())):
		default: // only the first one counts
		}
	})
	if err == nil {
		g.started = append(g.started, p)
	}

	return p, err
}

// readiness returns the readiness probe of a service or a shard.
func (g *Group) readiness(name string) process.Readiness {
	return process.Readiness{URL: "http://" + g.Addresses(name).Health + "/readyz?verbose"}
}

func (g *Group) awaitReady(ctx context.Context, p *process.Process, r process.Readiness) error {
	err := p.AwaitReady(ctx, r)
	if err == nil || ctx.Err() != nil {
		return err
	}

	return g.blame(p, err)
}

// blame adds the end of the log to an error that the process has caused.
func (g *Group) blame(p *process.Process, err error) error {
	if g.options.ShownLines > 0 {
		err = fmt.Errorf("%w\n%s", err, process.Tail(p.LogFile, g.options.ShownLines))
	}

	return err
}

// Ready returns an error for each of the services or shards that is not ready.
func (g *Group) Ready(ctx context.Context, names ...string) error {
	var errs []error

	for _, name := range names {
		if ok, answer := g.readiness(name).Ask(ctx); !ok {
			errs = append(errs, fmt.Errorf("%s is not ready: %s", name, answer))
		}
	}

	return errors.Join(errs...)
}

// End stops the latest processes with the names.
func (g *Group) End(names ...string) error {
	var (
		errs  []error
		ended []*process.Process
	)

	for _, name := range names {
		if p := g.Process(name); p != nil {
			ended = append(ended, p)
		} else {
			errs = append(errs, fmt.Errorf("there is no process %s", name))
		}
	}

	return errors.Join(append(errs, stop(ended))...)
}

// Stop stops all processes that were ever started.
func (g *Group) Stop() error { return stop(g.Started()) }

// stop stops processes at the same time.
func stop(all []*process.Process) error {
	errs := make([]error, len(all))

	var stopping sync.WaitGroup
	for i, p := range all {
		stopping.Go(func() { errs[i] = p.Stop(stopTimeout) })
	}
	stopping.Wait()

	return errors.Join(errs...)
}

// Destroy kills all processes that were ever started, and then ends the proxies.
func (g *Group) Destroy() error {
	var errs []error
	for _, p := range g.Started() {
		errs = append(errs, p.Destroy())
	}

	for _, m := range g.Members() {
		if m.Proxy != nil {
			m.Proxy.Stop()
		}
	}

	return errors.Join(errs...)
}

// Died returns a channel that receives an error when a process exits by itself.
func (g *Group) Died() <-chan error { return g.death }

// Process returns the latest process with the name, nil if there is none.
func (g *Group) Process(name string) *process.Process {
	for _, p := range slices.Backward(g.Started()) {
		if p.Name == name {
			return p
		}
	}

	return nil
}

// Members returns the services and shards in the order in which they were added.
func (g *Group) Members() []*Member {
	g.mu.Lock()
	defer g.mu.Unlock()

	return slices.Clone(g.members)
}

// Started returns all processes that were ever started.
func (g *Group) Started() []*process.Process {
	g.mu.Lock()
	defer g.mu.Unlock()

	return slices.Clone(g.started)
}

// Addresses returns the listen addresses of a service or a shard.
func (g *Group) Addresses(name string) Addresses {
	if m := g.Member(name); m != nil {
		return m.Addresses
	}

	return Addresses{}
}

// LogFile returns the path of the log of a process.
func (g *Group) LogFile(name string) string { return filepath.Join(g.options.LogDir, name+".log") }

// Certificate is a self-signed certificate for 127.0.0.1, valid for a year.
type Certificate struct {
	// CertFile and KeyFile are PEM files. Clients verify the server with CertFile.
	CertFile, KeyFile string
	// CA is the content of CertFile.
	CA []byte
}

// NewCertificate creates a certificate in a directory for the named server.
func NewCertificate(dir, name string) (Certificate, error) {
	c := Certificate{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}

	var (
		key []byte
		err error
	)

	if c.CA, key, err = cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil); err == nil {
		err = errors.Join(os.WriteFile(c.CertFile, c.CA, 0o600), os.WriteFile(c.KeyFile, key, 0o600))
	}

	if err != nil {
		return c, fmt.Errorf("make a certificate for %s: %w", name, err)
	}

	return c, nil
}
