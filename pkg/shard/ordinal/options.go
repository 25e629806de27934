package ordinal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/shard/internal/self"
)

const (
	// mostOrdinal bounds ordinals, so that they are numbers on every machine.
	mostOrdinal = 1<<31 - 1

	defaultTerm = 15 * time.Second
	longestTerm = 24 * time.Hour
)

// Options say which process of which StatefulSet this is. The zero value suits a Pod of a StatefulSet.
type Options struct {
	// PodName is the name of the Pod: the name of the StatefulSet, a dash, and the ordinal. Default: the host name, which is the name of
	// the Pod in a cluster.
	PodName string
	// Namespace is that of the Pod and of the StatefulSet. Default: the namespace of the Pod; required outside a cluster.
	Namespace string
	// StatefulSet is the name of the StatefulSet. Default: PodName up to its last dash.
	StatefulSet string
	// Hash decides which process an object belongs to. All processes must use the same. Default: [UID].
	Hash Hash

	// StopTheWorld makes the processes agree on each new number of replicas before any of them works with it; see the package
	// documentation. All processes must have the same setting. Default: false, no agreement.
	StopTheWorld bool
	// TermDuration is how long the others wait for a process that does not renew its acknowledgement, in whole seconds, at most a day: they
	// wait a quarter longer. The process itself stops its workers when two thirds have passed. All processes should have the same. It has no
	// use without StopTheWorld. Default: 15 seconds.
	TermDuration time.Duration
	// Patience is how long reconciles that run may go on when the number of replicas changes, before their contexts are cancelled. If they do
	// not end within another third of TermDuration, the process ends; see Exit. It has no use without StopTheWorld. Default: TermDuration.
	Patience time.Duration
	// Exit is called when workers have not stopped although they had to: only the end of the process stops them. It runs in its own goroutine
	// or in that of a worker, must end the process, and must not return. It has no use without StopTheWorld. Default: log the error with klog
	// and exit with code 1.
	Exit func(error)
}

// complete fills in defaults and validates. It also returns the ordinal. Tests pass the host name and the directory of what the kubelet mounts.
func (o Options) complete(hostname func() (string, error), mounted string) (Options, int, error) {
	var errs []error

	if o.PodName == "" {
		name, err := self.Host(hostname)
		if o.PodName = name; err != nil {
			errs = append(errs, fmt.Errorf("pod name: %w", err))
		}
	}

	if o.Namespace == "" {
		namespace, err := self.Namespace(mounted)
		if o.Namespace = namespace; err != nil {
			errs = append(errs, fmt.Errorf("namespace: %w", err))
		}
	}

	number := 0

	if o.PodName != "" {
		name, n, err := split(o.PodName)
		if err == nil && o.StatefulSet != "" && name != o.StatefulSet {
			err = fmt.Errorf("%q is not the name of a Pod of StatefulSet %q", o.PodName, o.StatefulSet)
		}

		if err != nil {
			errs = append(errs, fmt.Errorf("pod name: %w", err))
		}

		o.StatefulSet, number = name, n
	}

	if o.Hash == nil {
		o.Hash = UID
	}

	errs = append(errs, o.validateNames()...)

	o, ofTimes := o.completeTimes()
	if errs = append(errs, ofTimes...); len(errs) > 0 {
		return o, 0, fmt.Errorf("ordinal options: %w", errors.Join(errs...))
	}

	return o, number, nil
}

// completeTimes fills in and validates what only StopTheWorld uses.
func (o Options) completeTimes() (Options, []error) {
	if !o.StopTheWorld {
		if o.TermDuration != 0 || o.Patience != 0 || o.Exit != nil {
			return o, []error{errors.New("term duration, patience, exit: they have no use without StopTheWorld")}
		}

		return o, nil
	}

	if o.TermDuration == 0 {
		o.TermDuration = defaultTerm
	}

	if o.Patience == 0 {
		o.Patience = o.TermDuration
	}

	if o.Exit == nil {
		o.Exit = self.Exit
	}

	var errs []error
	if o.TermDuration < time.Second || o.TermDuration > longestTerm || o.TermDuration%time.Second != 0 {
		errs = append(errs, fmt.Errorf("term duration: %s must be whole seconds, at least one, at most %s", o.TermDuration, longestTerm))
	}

	if o.Patience < 0 {
		errs = append(errs, fmt.Errorf("patience: %s must not be negative", o.Patience))
	}

	return o, errs
}

func (o Options) validateNames() []error {
	var errs []error

	for _, name := range []struct {
		option, value string
		check         func(string) []string
	}{
		{"namespace", o.Namespace, validation.IsDNS1123Label},
		{"pod name", o.PodName, validation.IsDNS1123Subdomain},
	} {
		if name.value == "" {
			continue // complete has reported it
		}

		if problems := name.check(name.value); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s: %q is invalid: %s", name.option, name.value, strings.Join(problems, "; ")))
		}
	}

	return errs
}

// split returns the StatefulSet and the ordinal in the name of a Pod.
func split(pod string) (statefulSet string, ordinal int, err error) {
	i := strings.LastIndexByte(pod, '-')
	if i <= 0 {
		return "", 0, fmt.Errorf("%q contains no ordinal: %w", pod, errNoOrdinal)
	}

	n, err := strconv.ParseUint(pod[i+1:], 10, 31)
	if err != nil || n > mostOrdinal || strconv.FormatUint(n, 10) != pod[i+1:] {
		return "", 0, fmt.Errorf("%q does not end with an ordinal: %w", pod, errNoOrdinal)
	}

	return pod[:i], int(n), nil
}

var errNoOrdinal = errors.New("only Pods of a StatefulSet have one, as in web-0. " +
	"Run the controller as a StatefulSet, or share its objects by a ring, which needs no ordinals (shard.Claim)")
