package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/example/setup"
)

const usage = `Usage: example [flags]

Runs one shard of the example controller: it renders each Website that is assigned to it into a ConfigMap.
Start it several times with different names, or as a Deployment with several replicas.

  example --shard-name a --lease-namespace example --metrics-bind-address 0 --health-probe-bind-address 0

Flags:
`

// options are the values of the flags.
type options struct {
	setup.Flags

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
	holdOff        time.Duration
	drainTimeout   time.Duration
	embedded       bool

	carelessFile string
}

// parse returns the options, or pflag.ErrHelp after it has printed the help to out.
func parse(args []string, out io.Writer) (options, error) {
	var o options

	flags := pflag.NewFlagSet("example", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() { fmt.Fprint(out, usage, flags.FlagUsages()) }

	flags.StringVar(&o.ring, "ring", "example", "name of the ClusterRing")
	flags.StringVar(&o.shardName, "shard-name", "", "name of this shard and its Lease (default: the host name, which is the Pod's name)")
	flags.StringVar(&o.slots, "slots", "", "take one of this many names, the ring's slots, that outlive Pods, instead of a name of its own; wait while all are held. With the value scale: as many as the Pod's Deployment shall have replicas (default: none)")
	flags.StringSliceVar(&o.slotNames, "slot-names", nil, "take the first of these names that no other Pod holds, separated by commas; the ring lists them in spec.shardNames (default: $SHARD_NAME)")
	flags.StringVar(&o.shardLabel, "shard-label", "", "spec.shardLabel of the ring (default: $SHARD_LABEL, or none)")
	flags.StringVar(&o.podName, "pod-name", "", "name of the Pod that this process runs in, if it is not the name of the shard (default: none; with --slots or --slot-names: the host name, or a random one outside a cluster)")
	flags.StringVar(&o.leaseNamespace, "lease-namespace", "", "namespace of the Lease (default: the Pod's)")
	flags.StringVar(&o.podUID, "pod-uid", "", "uid of the Pod that this process runs in (default: that of the mounted token)")
	flags.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long the Lease counts as healthy after a renewal")
	flags.DurationVar(&o.renewDeadline, "lease-renew-deadline", 0, "how long to work without a successful renewal of the Lease (default: 2/3 of its duration)")
	flags.DurationVar(&o.retryPeriod, "lease-retry-period", 0, "time between renewals (default: 2/15 of its duration)")
	flags.DurationVar(&o.holdOff, "lease-hold-off", 0, "how long to wait before work after taking a free Lease (default: 2s)")

	flags.DurationVar(&o.drainTimeout, "drain-timeout", 0, "how long to work after the process was told to stop, until the objects are drained; negative: stop at once (default: 15s)")

	flags.BoolVar(&o.embedded, "embedded", false, "stand for election as the sharder of the ring, beside this shard, instead of relying on the services of ClusterRing; the ring needs spec.sharder Embedded")

	o.AddTo(flags)
	flags.StringVar(&o.carelessFile, "careless-file", "", "if the Lease is lost during a reconcile, write the object without any check, and append the answer to this file, as a line of JSON; for demonstrations of the ring's fence")

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return o, pflag.ErrHelp
		}

		return o, fmt.Errorf("%w; see --help", err)
	}

	return o, o.validate(flags.Args())
}

// slotCount returns the value of --slots as shard.Options take it.
func (o options) slotCount() (int, error) {
	switch o.slots {
	case "":
		return 0, nil
	case "scale":
		return shard.FollowScale, nil
	}

	count, err := strconv.Atoi(o.slots)
	if err != nil || count < 1 {
		return 0, fmt.Errorf("--slots is %q: it must be a number from 1, or scale", o.slots)
	}

	return count, nil
}

func (o options) validate(args []string) error {
	_, err := o.slotCount()

	switch {
	case err != nil:
		return err
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q; see --help", args[0])
	default:
		return o.Validate()
	}
}
