package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Options are the values of the flags that every service has. NewCommand fills them in.
type Options struct {
	// Kubeconfig is a path. If it is empty, $KUBECONFIG is used, or else the Pod's service account.
	Kubeconfig string
	// Namespace contains the service's own objects: its leader Lease and its Secrets.
	Namespace string
	// DefaultNamespaceSelector selects the namespaces of rings without a selector of their own; empty for the default of
	// the API.
	DefaultNamespaceSelector string
	// MetricsBindAddress, HealthProbeBindAddress, and PprofBindAddress are host:port; "0" or empty turns the server off.
	MetricsBindAddress, HealthProbeBindAddress, PprofBindAddress string
	// LogLevel is debug, info, or error; LogFormat is json or text.
	LogLevel, LogFormat string
	// KubeAPIQPS is the sustained number of requests per second to the API server, and KubeAPIBurst is the limit of a
	// burst.
	KubeAPIQPS   float32
	KubeAPIBurst int
	// LeaderElect is always false in services without leader election.
	LeaderElect bool
	// LeaderElectLeaseDuration is how long other replicas wait after a leader has vanished, LeaderElectRenewDeadline is
	// how long a leader tries to renew before it gives up, and LeaderElectRetryPeriod is the pause between attempts.
	LeaderElectLeaseDuration, LeaderElectRenewDeadline, LeaderElectRetryPeriod time.Duration
	// ShutdownDelay is the time between reporting not ready and ceasing to serve. ShutdownGrace limits the shutdown after
	// that.
	ShutdownDelay, ShutdownGrace time.Duration
}

// addFlags registers the common flags with their defaults.
func (o *Options) addFlags(fs *pflag.FlagSet, leaderElection bool) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"path of a kubeconfig `file`; default: $KUBECONFIG, or the Pod's service account")
	fs.StringVar(&o.Namespace, "namespace", contract.SystemNamespace,
		"`namespace` of the service's own objects, such as its leader Lease")
	fs.StringVar(&o.DefaultNamespaceSelector, "default-namespace-selector", "",
		"`selector` of the namespaces of rings without spec.namespaceSelector, as kubectl takes it in --selector; set the same for all services. "+
			"By default, all namespaces except kube-node-lease, kube-public, kube-system, and sharding-system")
	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", 100, "sustained requests per second to the API server")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", 200, "maximum burst of requests to the API server")

	fs.StringVar(&o.MetricsBindAddress, "metrics-bind-address", ":8080", "`address` that serves /metrics; 0 turns it off")
	fs.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", ":8081",
		"`address` that serves /healthz and /readyz; 0 turns it off")
	fs.StringVar(&o.PprofBindAddress, "pprof-bind-address", "",
		"`address` that serves /debug/pprof; off by default, because it exposes the internals of the process")

	fs.StringVar(&o.LogLevel, "log-level", "info", "`level` of logs: debug, info, or error")
	fs.StringVar(&o.LogFormat, "log-format", "json", "`format` of logs: json or text")

	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay", 0,
		"`time` between reporting not ready and ceasing to serve, so that load balancers can react")
	fs.DurationVar(&o.ShutdownGrace, "shutdown-grace", 30*time.Second,
		"`time` that running work has to finish after that; then the process ends without releasing its leader Lease")

	if !leaderElection {
		return
	}
	fs.BoolVar(&o.LeaderElect, "leader-elect", true,
		"let only one replica work at a time; turn off only if there is one replica")
	fs.DurationVar(&o.LeaderElectLeaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"`time` after which another replica may replace a leader that has vanished")
	fs.DurationVar(&o.LeaderElectRenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"`time` that a leader tries to renew before it gives up and exits")
	fs.DurationVar(&o.LeaderElectRetryPeriod, "leader-elect-retry-period", 2*time.Second,
		"`time` between attempts to acquire or renew the leader Lease")
}

// validate returns everything that is wrong with the common flags, or nil.
func (o *Options) validate() error {
	var errs []error

	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	for _, msg := range validation.IsDNS1123Label(o.Namespace) {
		fail("--namespace %q is no namespace name: %s", o.Namespace, msg)
	}

	if _, err := parseNamespaceSelector(o.DefaultNamespaceSelector); err != nil {
		errs = append(errs, err)
	}

	if o.KubeAPIQPS <= 0 {
		fail("--kube-api-qps must be greater than 0, not %v", o.KubeAPIQPS)
	}

	if o.KubeAPIBurst < 1 {
		fail("--kube-api-burst must be at least 1, not %d", o.KubeAPIBurst)
	}

	if !slices.Contains([]string{"debug", "info", "error"}, o.LogLevel) {
		fail("--log-level must be debug, info, or error, not %q", o.LogLevel)
	}

	if o.LogFormat != formatJSON && o.LogFormat != formatText {
		fail("--log-format must be %s or %s, not %q", formatJSON, formatText, o.LogFormat)
	}

	if o.ShutdownDelay < 0 {
		fail("--shutdown-delay must not be negative, it is %s", o.ShutdownDelay)
	}

	if o.ShutdownGrace <= 0 {
		fail("--shutdown-grace must be greater than 0, not %s", o.ShutdownGrace)
	}

	if o.LeaderElect {
		errs = append(errs, o.validateLeaderElection())
	}

	return errors.Join(errs...)
}

// validateEmbedded returns what is wrong with the options that an embedding sets, in the words of its fields.
func (o *Options) validateEmbedded() error {
	var errs []error

	for _, msg := range validation.IsDNS1123Label(o.Namespace) {
		errs = append(errs, fmt.Errorf("namespace %q is no namespace name: %s", o.Namespace, msg))
	}

	if err := o.validateLeaderElection(); err != nil {
		names := strings.NewReplacer("--leader-elect-lease-duration", "lease duration", "--leader-elect-renew-deadline",
			"renew deadline",
			"--leader-elect-retry-period", "retry period")
		errs = append(errs, errors.New(names.Replace(err.Error())))
	}

	return errors.Join(errs...)
}

// validateLeaderElection checks what client-go would otherwise refuse late, or round off: the Lease counts in seconds.
func (o *Options) validateLeaderElection() error {
	lease, renew, retry := o.LeaderElectLeaseDuration, o.LeaderElectRenewDeadline, o.LeaderElectRetryPeriod
	switch {
	case retry <= 0:
		return fmt.Errorf("--leader-elect-retry-period must be greater than 0, not %s", retry)
	case lease < time.Second || lease%time.Second != 0:
		return fmt.Errorf("--leader-elect-lease-duration must be whole seconds, at least 1s, not %s", lease)
	case renew <= retry*6/5:
		return fmt.Errorf("--leader-elect-renew-deadline (%s) must be greater than 1.2 times --leader-elect-retry-period "+
			"(%s)", renew, retry)
	case lease <= renew:
		return fmt.Errorf("--leader-elect-lease-duration (%s) must be greater than --leader-elect-renew-deadline (%s)",
			lease, renew)
	}

	return nil
}

const (
	formatJSON = "json"
	formatText = "text"
)

// newLogger returns a logger that writes to out. Options must be valid.
func newLogger(o *Options, name string, out io.Writer) logr.Logger {
	level, _ := zapcore.ParseLevel(o.LogLevel)
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder

	encoder := zapcore.NewJSONEncoder(encoding)
	if o.LogFormat == formatText {
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}

	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(out)), level)

	return zapr.NewLogger(zap.New(quietStop{core})).WithName(name)
}

// quietStop drops the errors that libraries log on a graceful stop, where nothing is wrong: the manager finds that it
// has lost the Lease that it has just released, and the elector that a renewal was cancelled. A real loss ends the
// command with an error, and is not logged this way.
type quietStop struct{ zapcore.Core }

func (q quietStop) With(fields []zapcore.Field) zapcore.Core { return quietStop{q.Core.With(fields)} }

func (q quietStop) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !q.Enabled(e.Level) {
		return ce
	}

	return ce.AddCore(e, q)
}

func (q quietStop) Write(e zapcore.Entry, fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && isGracefulStop(e, err) {
			return nil
		}
	}

	return q.Core.Write(e, fields) //nolint:wrapcheck // a Core is a pass-through, its errors are zap's own
}

func isGracefulStop(e zapcore.Entry, err error) bool {
	if strings.HasSuffix(e.LoggerName, ".leaderelection") {
		return errors.Is(err, context.Canceled)
	}

	return strings.HasPrefix(e.Message, "error received after stop sequence was engaged") &&
		err.Error() == "leader election lost"
}

// ownsProcess marks the context of a command that is all that its process does, as under [Main].
type ownsProcess struct{}

// setGlobalLoggers hands the logger to the libraries that log without being given one. It does nothing in a process
// that is not the command's own: klog does not allow it while anything uses a client.
func setGlobalLoggers(ctx context.Context, o *Options) {
	if ctx.Value(ownsProcess{}) == nil {
		return
	}

	log := newLogger(o, "client", os.Stderr)
	klog.SetLoggerWithOptions(log, klog.ContextualLogger(true))
	ctrllog.SetLogger(log)
}
