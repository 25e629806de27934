// Package setup contains what the controllers of this module need around their managers, whether their objects are shared or not: common flags,
// a logger, the configuration of clients, and the scheme.
package setup

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// Flags are the values of the common flags. [Flags.AddTo] sets the defaults.
type Flags struct {
	// Kubeconfig is the path of a kubeconfig file. Empty: $KUBECONFIG, or the Pod's service account.
	Kubeconfig string
	// QPS and Burst limit requests to the API server: how many per second, and how many at once.
	QPS   float32
	Burst int

	// MetricsAddress, ProbeAddress, and PprofAddress are addresses to listen on; 0 for none.
	MetricsAddress, ProbeAddress, PprofAddress string
	// LogLevel is debug, info, or error. LogFormat is text or json.
	LogLevel, LogFormat string

	// Concurrency is the number of objects that one controller reconciles concurrently.
	Concurrency int
	// HistoryFile is the file that records reconciles, as [history.Open] opens it. Empty: none.
	//
	// [history.Open]: https://pkg.go.dev/github.com/clusterring/clusterring/tools/example/history#Open
	HistoryFile string
	// WorkDuration is the time added to each reconcile.
	WorkDuration time.Duration
}

// AddTo adds the flags of clients, addresses, and logs to a set of flags, and those of the controllers.
func (f *Flags) AddTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "path of a kubeconfig file (default: $KUBECONFIG, or the Pod's service account)")
	flags.Float32Var(&f.QPS, "kube-api-qps", 100, "requests per second to the API server")
	flags.IntVar(&f.Burst, "kube-api-burst", 200, "maximum burst of requests to the API server")

	flags.StringVar(&f.MetricsAddress, "metrics-bind-address", ":8080", "address of /metrics; 0 for none")
	flags.StringVar(&f.ProbeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 for none")
	flags.StringVar(&f.PprofAddress, "pprof-bind-address", "0", "address of /debug/pprof; 0 for none")
	flags.StringVar(&f.LogLevel, "log-level", "info", "debug, info, or error")
	flags.StringVar(&f.LogFormat, "log-format", "text", "text or json")

	flags.IntVar(&f.Concurrency, "concurrency", 4, "number of objects that one controller reconciles concurrently")
	flags.StringVar(&f.HistoryFile, "history-file", "", "append the start and end of each reconcile to this file, as lines of JSON; - for standard output")
	flags.DurationVar(&f.WorkDuration, "work-duration", 0, "time added to each reconcile")
}

// Validate returns an error if a value is invalid.
func (f *Flags) Validate() error {
	switch {
	case f.Concurrency < 1:
		return fmt.Errorf("--concurrency is %d: it must be at least 1", f.Concurrency)
	case f.WorkDuration < 0:
		return fmt.Errorf("--work-duration is %s: it must not be negative", f.WorkDuration)
	case f.QPS <= 0 || f.Burst < 1:
		return errors.New("--kube-api-qps and --kube-api-burst must be positive")
	default:
		return nil
	}
}

// Logger returns a logger that writes to standard error.
func (f *Flags) Logger() (logr.Logger, error) {
	levels := map[string]zapcore.Level{"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "error": zapcore.ErrorLevel}
	formats := map[string]zap.Opts{"text": zap.ConsoleEncoder(), "json": zap.JSONEncoder()}

	at, known := levels[f.LogLevel]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-level is %q: it must be debug, info, or error", f.LogLevel)
	}

	encode, known := formats[f.LogFormat]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-format is %q: it must be text or json", f.LogFormat)
	}

	return zap.New(zap.Level(at), encode), nil
}

// Config returns the configuration of the clients. It asks no server.
func (f *Flags) Config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("determine how to reach the API server (set --kubeconfig or KUBECONFIG): %w", err)
	}

	config.QPS, config.Burst = f.QPS, f.Burst

	return config, nil
}

// Scheme returns a new scheme with the kinds of Kubernetes and of the example.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))

	return scheme
}

// Explain adds to the error of a new manager what to do about it.
func Explain(err error, config *rest.Config) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("set up the manager: install deploy/example first: %w", err)
	}

	return fmt.Errorf("set up the manager (the API server is %s): %w", config.Host, err)
}
