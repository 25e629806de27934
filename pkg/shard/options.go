package shard

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard/internal/self"
)

const (
	defaultLeaseDuration = 15 * time.Second
	// maxLeaseDuration is the longest duration that the services count.
	maxLeaseDuration = 24 * time.Hour
	defaultHoldOff   = 2 * time.Second
	// defaultDrainTimeout leaves half of a Pod's default grace period for the reconciles that run then.
	defaultDrainTimeout = 15 * time.Second
	// minHoldOff is longer than a write that takes an object from a shard: the rebalancer relies for 500 ms on an answer that the
	// Lease is free, and abandons a write that has not ended a second later. The shard's cache needs no part of it.
	minHoldOff = 1500 * time.Millisecond
	// randomLength makes the names of processes outside a cluster differ.
	randomLength = 8
	// jitter is the factor by which client-go's leader election stretches its retry period.
	jitter = 1.2
)

// Options describe the shard and how it keeps its Lease. The zero value lacks only the ring's name.
type Options struct {
	// Ring is the name of the ClusterRing that the shard belongs to. Required.
	Ring string
	// Name is the shard's name: the name and the holder of its Lease, and the value of the shard label on its objects. No two
	// processes of a ring may use the same name at the same time. Default: the host name, which is the Pod's name in a cluster.
	Name string
	// Pod is the name of the Pod that runs the shard, if it differs from Name. The fence of a ring needs it: the API server knows
	// which Pod writes, not which shard. The Lease announces it in the annotation v1alpha1.AnnotationPod. Default: none, which
	// stands for Name. With Slots or SlotNames: the host name, and a random name outside a cluster.
	Pod string
	// PodUID is the uid of the Pod that runs the shard. The Lease announces it in the annotation v1alpha1.AnnotationPodUID. With it, the
	// lease monitor can give the shard up as soon as the kubelet reports that the Pod has ended. It must be the uid of the Pod that this process
	// runs in, or empty. Default: that of the Pod's token, which the kubelet mounts; none outside a cluster.
	PodUID types.UID
	// Slots makes the shard's name outlive its Pod: [Claim] takes one of this many names, the slots v1alpha1.SlotName(Ring, 0) and so on, that no
	// other Pod holds. When a Pod is replaced, its successor takes over its slot, and no object moves. Name must be empty then, and Pod must be
	// unique in the namespace. The slots of a ring belong to one namespace. With [FollowScale], there are as many slots as the Deployment, or
	// whatever else owns the Pod, shall have replicas. At most [v1alpha1.MaxSlots]. Default: 0, no slots.
	Slots int
	// SlotNames are the names of slots, for shards whose names are given: [Claim] takes the first of them that no other Pod holds. With one name,
	// all Pods but one are standbys. They replace the names that Slots counts, which must be 0. The ring must list them in spec.shardNames:
	// otherwise, an admission policy refuses their Leases. At most 1000, none twice. Default: none.
	SlotNames []string
	// ShardLabel is the key of the label by which the ring assigns objects: spec.shardLabel of the ring, without which it must be empty. A shard
	// with another key does not see its objects, so it gets none: the Lease announces the key in the annotation
	// v1alpha1.AnnotationShardLabel, the condition ShardsAvailable of the ring reports the difference, and an admission policy refuses the
	// Lease. Default: none, which stands for the key that follows from the ring's name.
	ShardLabel string
	// StandbyAddress is where [Claim] answers probes by HTTP while this process waits for a slot. A request whose path contains "ready" is
	// answered with 200 as soon as the process could take one over, any other request immediately. Claim closes the address before it
	// returns, so it may be that of the manager's probes. Default: none.
	StandbyAddress string
	// Namespace holds the shard's Lease. Default: the namespace of the Pod; required outside a cluster.
	Namespace string

	// LeaseDuration is how long the Lease counts as healthy after a renewal, in whole seconds, at most a day. If a shard
	// vanishes, its objects move after twice this time. Default: 15 seconds.
	LeaseDuration time.Duration
	// RenewDeadline is how long the shard works after the last successful renewal of its Lease was sent. After that, the contexts
	// of its workers are cancelled. The workers must stop before LeaseDuration has passed; otherwise, Exit is called. Must be
	// less than LeaseDuration. Default: two thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between renewals. Must be less than RenewDeadline / 1.2. Default: two fifteenths of
	// LeaseDuration.
	RetryPeriod time.Duration

	// HoldOff is how long the shard waits before it works, after it has taken a free Lease or created one. While a Lease is free,
	// the rebalancer takes objects from the shard without asking it, and whoever has seen the Lease free relies on this time. The
	// Lease announces it in the annotation v1alpha1.AnnotationHoldOff. If the Lease announces a longer time, because another
	// value was set when it was last held, the shard waits that long once. A shard whose Lease is still held under its name does
	// not wait. At least 1.5 seconds. Default: 2 seconds.
	HoldOff time.Duration

	// DrainTimeout is how long a shard that was told to stop works until its objects are drained; see [Shard.UntilDrained], without which it has no
	// effect. The Pod's terminationGracePeriodSeconds must be longer than this and the longest reconcile together. Negative: the shard stops
	// at once, and its objects move when it has stopped. Default: 15 seconds.
	DrainTimeout time.Duration

	// Exit is called when the Lease, or that of what runs in one replica (package adopt), is lost and workers have not stopped in
	// time. Only the end of the process stops such workers. Exit runs in its own goroutine or in that of a worker. It must end the
	// process and not return. Default: log the error with klog and exit with code 1.
	Exit func(error)
}

// complete fills in defaults and validates. Tests pass the host name and the directory of what the kubelet mounts.
func (o Options) complete(hostname func() (string, error), mounted string) (Options, error) {
	var errs []error

	token, noToken := os.ReadFile(filepath.Join(mounted, "token"))

	switch named := cmp.Or(o.Name, o.Pod); {
	case !o.Slotted() && o.Name != "", o.Slotted() && named != "":
	case o.Slotted() && noToken != nil:
		o.Pod = "process-" + utilrand.String(randomLength) // the host may run several
	default:
		name, err := self.Host(hostname)
		if err != nil {
			errs = append(errs, fmt.Errorf("name: %w", err))
		}

		if !o.Slotted() {
			o.Name = name
		} else {
			o.Pod = name
		}
	}

	if o.Namespace == "" {
		namespace, err := self.Namespace(mounted)
		if o.Namespace = namespace; err != nil {
			errs = append(errs, fmt.Errorf("namespace: %w", err))
		}
	}

	if o.PodUID == "" {
		o.PodUID = boundTo(token) // without a token, the Lease announces no uid
	}

	if o.LeaseDuration == 0 {
		o.LeaseDuration = defaultLeaseDuration
	}

	if o.RenewDeadline == 0 {
		o.RenewDeadline = o.LeaseDuration * 2 / 3
	}

	if o.RetryPeriod == 0 {
		o.RetryPeriod = o.LeaseDuration * 2 / 15
	}

	if o.HoldOff == 0 {
		o.HoldOff = defaultHoldOff
	}

	if o.DrainTimeout == 0 {
		o.DrainTimeout = defaultDrainTimeout
	}

	errs = append(errs, o.validateNames()...)
	errs = append(errs, o.validateSlots()...)

	errs = append(errs, o.validateTimes()...)
	if len(errs) > 0 {
		return o, fmt.Errorf("shard options: %w", errors.Join(errs...))
	}

	return o, nil
}

// Variables of the environment that [Options.WithEnvironment] reads.
const (
	// EnvShardName contains [Options].SlotNames, separated by commas.
	EnvShardName = "SHARD_NAME"
	// EnvShardLabel contains [Options].ShardLabel.
	EnvShardLabel = "SHARD_LABEL"
)

// WithEnvironment returns the options with what is missing in them taken from the environment: SlotNames from SHARD_NAME, unless the options name
// the shard by Name, Slots, or SlotNames, and ShardLabel from SHARD_LABEL. Variables that are not set change nothing. [New] and [Claim] validate
// the result. Nothing else in this package reads these variables.
func (o Options) WithEnvironment() Options {
	if name := os.Getenv(EnvShardName); name != "" && o.Name == "" && !o.Slotted() {
		o.SlotNames = strings.Split(name, ",")
		for i := range o.SlotNames {
			o.SlotNames[i] = strings.TrimSpace(o.SlotNames[i])
		}
	}

	o.ShardLabel = cmp.Or(o.ShardLabel, os.Getenv(EnvShardLabel))

	return o
}

// Slotted reports whether the shard gets the name of a slot: Slots or SlotNames are set. Only then, StandbyAddress has a use.
func (o Options) Slotted() bool { return o.Slots != 0 || len(o.SlotNames) > 0 }

// boundTo returns the uid of the Pod that a service account token is bound to; empty if there is none. The token is not verified: it is this
// process's own.
func boundTo(token []byte) types.UID {
	parts := bytes.Split(bytes.TrimSpace(token), []byte("."))
	if len(parts) != 3 { //nolint:mnd // header, claims, signature
		return ""
	}

	text, err := base64.RawURLEncoding.DecodeString(string(parts[1]))
	if err != nil {
		return ""
	}

	var claims struct {
		Kubernetes struct {
			Pod struct {
				UID types.UID `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(text, &claims); err != nil || len(checkUID(string(claims.Kubernetes.Pod.UID))) > 0 {
		return ""
	}

	return claims.Kubernetes.Pod.UID
}

// maxUID is how long a uid may be. The API server makes them 36 characters long.
const maxUID = 64

// checkUID returns why the text cannot be a uid.
func checkUID(uid string) []string {
	if len(uid) > maxUID || strings.ContainsFunc(uid, func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		return []string{"it must consist of at most " + strconv.Itoa(maxUID) + " letters, digits, and dashes"}
	}

	return nil
}

// validateNames does not report names that have no default: complete has reported them.
func (o Options) validateNames() []error {
	var errs []error
	if o.Ring == "" {
		errs = append(errs, errors.New("ring: set the name of the shard's ClusterRing"))
	}

	for _, name := range []struct {
		option, value string
		check         func(string) []string
	}{
		{"ring", o.Ring, objectAndLabel},
		{"name", o.Name, objectAndLabel},
		{"namespace", o.Namespace, validation.IsDNS1123Label},
		{"pod", o.Pod, validation.IsDNS1123Subdomain},
		{"pod uid", string(o.PodUID), checkUID},
		{"shard label", o.ShardLabel, v1alpha1.ValidateShardLabel},
	} {
		if name.value == "" {
			continue
		}

		if problems := name.check(name.value); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s: %q is invalid: %s", name.option, name.value, strings.Join(problems, "; ")))
		}
	}

	if o.Name == v1alpha1.LeaseControllerIdentity {
		errs = append(errs, fmt.Errorf("name: %q is how the lease monitor signs Leases that it has taken; choose another", o.Name))
	}

	return errs
}

// maxSlotNames is how many names spec.shardNames of a ring may contain.
const maxSlotNames = 1000

// validateSlotNames validates the names of slots that are given.
func (o Options) validateSlotNames() []error {
	var errs []error

	switch {
	case o.Slots != 0:
		errs = append(errs, fmt.Errorf("slot names: remove them, or slots, which is %d: both name the slots", o.Slots))
	case len(o.SlotNames) > maxSlotNames:
		errs = append(errs, fmt.Errorf("slot names: %d are too many: a ring can have %d", len(o.SlotNames), maxSlotNames))
	case o.Name != "":
		errs = append(errs, fmt.Errorf("name: remove %q: with slot names, the name is that of the slot", o.Name))
	}

	for i, name := range o.SlotNames {
		switch problems := objectAndLabel(name); {
		case len(problems) > 0:
			errs = append(errs, fmt.Errorf("slot names: %q is invalid: %s", name, strings.Join(problems, "; ")))
		case name == v1alpha1.LeaseControllerIdentity:
			errs = append(errs, fmt.Errorf("slot names: %q is how the lease monitor signs Leases that it has taken; choose another", name))
		case slices.Contains(o.SlotNames[:i], name):
			errs = append(errs, fmt.Errorf("slot names: %q is listed twice", name))
		}
	}

	return errs
}

func (o Options) validateSlots() []error {
	if len(o.SlotNames) > 0 {
		return o.validateSlotNames()
	}

	switch {
	case o.Slots < FollowScale || o.Slots > v1alpha1.MaxSlots:
		return []error{fmt.Errorf("slots: %d must be from 0 to %d, or FollowScale", o.Slots, v1alpha1.MaxSlots)}
	case o.Slots == 0 && o.StandbyAddress != "":
		return []error{errors.New("standby address: it has no use without slots")}
	case o.Slots == 0:
		return nil
	case o.Name != "":
		return []error{fmt.Errorf("name: remove %q: with slots, the name is that of the slot", o.Name)}
	case o.Ring == "":
		return nil // validateNames has reported it
	}

	if last, problems := lastSlot(o.Ring, o.Slots); len(problems) > 0 {
		return []error{fmt.Errorf("slots: the name of the last slot, %q, is invalid: %s", last, strings.Join(problems, "; "))}
	}

	return nil
}

// lastSlot returns the longest name of so many slots, the first one if there are none, and why it is invalid.
func lastSlot(ring string, slots int) (name string, problems []string) {
	name = v1alpha1.SlotName(ring, max(slots-1, 0))

	return name, objectAndLabel(name)
}

// objectAndLabel returns why a name cannot be both the name of an object and the value of a label.
func objectAndLabel(name string) []string {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return problems
	}

	return validation.IsValidLabelValue(name)
}

func (o Options) validateTimes() []error {
	var errs []error
	if o.LeaseDuration < time.Second || o.LeaseDuration > maxLeaseDuration || o.LeaseDuration%time.Second != 0 {
		errs = append(errs, fmt.Errorf("lease duration: %s must be whole seconds, at least one, at most %s", o.LeaseDuration, maxLeaseDuration))
	}

	if o.RenewDeadline <= 0 || o.RenewDeadline >= o.LeaseDuration {
		errs = append(errs, fmt.Errorf("renew deadline: %s must be positive and less than the lease duration, %s", o.RenewDeadline, o.LeaseDuration))
	}

	if o.RetryPeriod <= 0 || float64(o.RetryPeriod)*jitter >= float64(o.RenewDeadline) {
		errs = append(errs, fmt.Errorf("retry period: %s must be positive and less than the renew deadline, %s, divided by %v", o.RetryPeriod, o.RenewDeadline, jitter))
	}

	if o.HoldOff < minHoldOff {
		errs = append(errs, fmt.Errorf("hold-off: %s must be at least %s", o.HoldOff, minHoldOff))
	}

	return errs
}
