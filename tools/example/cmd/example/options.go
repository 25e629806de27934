package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const usage = `Usage: example [flags]

Runs one shard of the example controller: it renders each Website that is assigned to it into a ConfigMap.
Start it several times with different names, or as a Deployment with several replicas.

  example --shard-name a --lease-namespace example --metrics-bind-address 0 --health-probe-bind-address 0

Flags:
`

// options are the values of the flags.
type options struct {
	ring           string
	shardName      string
	slots          string
	slotNames      []string
	shardLabel     string
	podName        string
	leaseNamespace string
	podUID         string
	leaseDuration  time.Duration
	renewDeadline  time.Duration
	retryPeriod    time.Duration
	embedded       bool

	// Of clients: how many requests per second to the API server, and how many at once.
	kubeconfig string
	qps        float32
	burst      int

	metricsAddress, probeAddress, pprofAddress string // 0 for none
	logLevel, logFormat                        string

	concurrency int
	controllers []string
	// For tests and demonstrations: see extras.
	historyFile, carelessFile string
	workDuration              time.Duration
	changeDuration, changeCPU time.Duration
	unsharded                 bool
}

// parse returns the options, or pflag.ErrHelp after it has printed the help to out.
func parse(args []string, out io.Writer) (options, error) {
	var o options

	flags := pflag.NewFlagSet("example", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() { fmt.Fprint(out, usage, flags.FlagUsages()) }

	flags.StringVar(&o.ring, "ring", "example", "name of the ClusterRing")
	flags.StringVar(&o.shardName, "shard-name", "",
		"name of this shard and its Lease (default: the host name, which is the Pod's name)")
	flags.StringVar(&o.slots, "slots", "",
		"take one of this many names, the ring's slots, that outlive Pods, instead of a name of its own; wait "+
			"while all are held. With the value scale: as many as the Pod's Deployment shall have replicas (default: "+
			"none)")
	flags.StringSliceVar(&o.slotNames, "slot-names", nil,
		"take the first of these names that no other Pod holds, separated by commas; the ring lists them in "+
			"spec.shardNames (default: $SHARD_NAME)")
	flags.StringVar(&o.shardLabel, "shard-label", "", "spec.shardLabel of the ring (default: $SHARD_LABEL, or none)")
	flags.StringVar(&o.podName, "pod-name", "",
		"name of the Pod that this process runs in, if it is not the name of the shard (default: none; with "+
			"--slots or --slot-names: the host name, or a random one outside a cluster)")
	flags.StringVar(&o.leaseNamespace, "lease-namespace", "", "namespace of the Lease (default: the Pod's)")
	flags.StringVar(&o.podUID, "pod-uid", "",
		"uid of the Pod that this process runs in (default: that of the mounted token)")
	flags.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second,
		"how long the Lease counts as healthy after a renewal")
	flags.DurationVar(&o.renewDeadline, "lease-renew-deadline", 0,
		"how long to work without a successful renewal of the Lease (default: 2/3 of its duration)")
	flags.DurationVar(&o.retryPeriod, "lease-retry-period", 0, "time between renewals (default: 2/15 of its duration)")
	flags.BoolVar(&o.embedded, "embedded", false,
		"stand for election as the sharder of the ring, beside this shard, instead of relying on the services of "+
			"ClusterRing; the ring needs spec.sharder Embedded")

	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"path of a kubeconfig file (default: $KUBECONFIG, or the Pod's service account)")
	flags.Float32Var(&o.qps, "kube-api-qps", 100, "requests per second to the API server")
	flags.IntVar(&o.burst, "kube-api-burst", 200, "maximum burst of requests to the API server")

	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "address of /metrics; 0 for none")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 for none")
	flags.StringVar(&o.pprofAddress, "pprof-bind-address", "0", "address of /debug/pprof; 0 for none")
	flags.StringVar(&o.logLevel, "log-level", "info", "debug, info, or error")
	flags.StringVar(&o.logFormat, "log-format", "text", "text or json")

	flags.IntVar(&o.concurrency, "concurrency", 4, "number of objects that one controller reconciles concurrently")
	flags.StringSliceVar(&o.controllers, "controllers", slices.Clone(controllers), "controllers to run")
	flags.StringVar(&o.historyFile, "history-file", "",
		"append the start and end of each reconcile to this file, as lines of JSON; - for standard output")
	flags.DurationVar(&o.workDuration, "work-duration", 0, "time added to each reconcile")
	flags.DurationVar(&o.changeDuration, "change-duration", 0, "time added to the work on each change of a Website's spec")
	flags.DurationVar(&o.changeCPU, "change-cpu", 0, "CPU time added to the work on each change of a Website's spec")
	flags.BoolVar(&o.unsharded, "unsharded", false, "work on all objects, as an ordinary controller does: to compare with")
	flags.StringVar(&o.carelessFile, "careless-file", "",
		"if the Lease is lost during a reconcile, write the object without any check, and append the answer to "+
			"this file, as a line of JSON; for demonstrations of the ring's fence")

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return o, pflag.ErrHelp
		}

		return o, fmt.Errorf("%w; see --help", err)
	}

	o = o.withEnvironment()

	return o, o.validate(flags.Args())
}

// withEnvironment returns the options with what is missing in them, and what a Deployment of named shards has in its
// environment.
func (o options) withEnvironment() options {
	if names := os.Getenv("SHARD_NAME"); names != "" && o.shardName == "" && o.slots == "" && len(o.slotNames) == 0 {
		for name := range strings.SplitSeq(names, ",") {
			o.slotNames = append(o.slotNames, strings.TrimSpace(name))
		}
	}

	o.shardLabel = cmp.Or(o.shardLabel, os.Getenv("SHARD_LABEL"))

	return o
}

// shard returns the options of the shard.
func (o options) shard(exit func(error)) shard.Options {
	slots, _ := o.slotsOf() // validated

	return shard.Options{
		Ring: o.ring, Name: o.shardName, Slots: slots, ShardLabel: o.shardLabel, Pod: o.podName, Namespace: o.leaseNamespace,
		Kinds: shard.Kinds{
			shard.Main(&v1alpha1.Website{}), shard.Controlled(&corev1.ConfigMap{}),
			shard.Main(&v1alpha1.Fleet{}), shard.Controlled(&v1alpha1.Ship{}),
		},
		CheckWrites:   true, // writes nothing after the Lease is lost, or to an object that has moved
		LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
		PodUID: types.UID(o.podUID), Exit: exit,
	}
}

// slotsOf returns the slots that the flags describe.
func (o options) slotsOf() (shard.Slots, error) {
	switch {
	case o.slots != "" && len(o.slotNames) > 0:
		return shard.Slots{}, errors.New("--slots and --slot-names both name the slots: remove one of them")
	case len(o.slotNames) > 0:
		return shard.Named(o.slotNames...), nil
	case o.slots == "":
		return shard.Slots{}, nil
	case o.slots == "scale":
		return shard.Scale(), nil
	}

	count, err := strconv.Atoi(o.slots)
	if err != nil || count < 1 {
		return shard.Slots{}, fmt.Errorf("--slots is %q: it must be a number from 1, or scale", o.slots)
	}

	return shard.Count(count), nil
}

func (o options) validate(args []string) error {
	_, err := o.slotsOf()

	switch {
	case err != nil:
		return err
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q; see --help", args[0])
	case o.concurrency < 1:
		return fmt.Errorf("--concurrency is %d: it must be at least 1", o.concurrency)
	case len(o.controllers) == 0:
		return errors.New("--controllers is empty: name at least one")
	case o.unsharded && (o.historyFile != "" || o.carelessFile != "" || o.slots != ""):
		return errors.New("--unsharded excludes --history-file, --careless-file, and --slots")
	}

	for _, name := range o.controllers {
		if !slices.Contains(controllers, name) {
			return fmt.Errorf("--controllers: there is no controller %q; there are %s", name, strings.Join(controllers, ", "))
		}
	}

	return nil
}

// logger returns a logger that writes to standard error.
func (o options) logger() (logr.Logger, error) {
	levels := map[string]zapcore.Level{"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "error": zapcore.ErrorLevel}
	formats := map[string]zap.Opts{"text": zap.ConsoleEncoder(), "json": zap.JSONEncoder()}

	at, known := levels[o.logLevel]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-level is %q: it must be debug, info, or error", o.logLevel)
	}

	encode, known := formats[o.logFormat]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-format is %q: it must be text or json", o.logFormat)
	}

	return zap.New(zap.Level(at), encode), nil
}

// config returns the configuration of the clients. It asks no server.
func (o options) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("determine how to reach the API server (set --kubeconfig or KUBECONFIG): %w", err)
	}

	config.QPS, config.Burst = o.qps, o.burst

	return config, nil
}

// newScheme returns a new scheme with the kinds of Kubernetes and of the example.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))

	return scheme
}

// explain adds to the error of a new manager what to do about it.
func explain(err error, config *rest.Config) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("set up the manager: install deploy/example first: %w", err)
	}

	return fmt.Errorf("set up the manager (the API server is %s): %w", config.Host, err)
}
