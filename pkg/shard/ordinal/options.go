package ordinal

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/shard/internal/self"
)

// Options say which process of which StatefulSet this is. The zero value suits a Pod of a StatefulSet.
type Options struct {
	// PodName is the name of the Pod: the name of the StatefulSet, a dash, and the ordinal. Default: the host name, which is the name of
	// the Pod in a cluster.
	PodName string
	// Namespace is that of the Pod and of the StatefulSet. Default: the namespace of the Pod; required outside a cluster.
	Namespace string
	// Hash decides which process an object belongs to. All processes must use the same. Default: [Key].
	Hash Hash
}

// complete fills in defaults and validates. It also returns the name of the StatefulSet and the ordinal.
func (o Options) complete() (complete Options, set string, ordinal int, err error) {
	var errs []error

	if o.PodName == "" {
		o.PodName, err = self.Host(os.Hostname)
	}

	if err == nil {
		set, ordinal, err = split(o.PodName)
	}

	if err != nil {
		errs = append(errs, fmt.Errorf("pod name: %w", err))
	}

	if o.Namespace != "" {
		err = invalid(o.Namespace, validation.IsDNS1123Label)
	} else {
		o.Namespace, err = self.Namespace(self.Mounted)
	}

	if err != nil {
		errs = append(errs, fmt.Errorf("namespace: %w", err))
	}

	if len(errs) > 0 {
		return o, "", 0, fmt.Errorf("ordinal options: %w", errors.Join(errs...))
	}

	if o.Hash == nil {
		o.Hash = Key
	}

	return o, set, ordinal, nil
}

// split returns the StatefulSet and the ordinal in the name of a Pod.
func split(pod string) (set string, ordinal int, err error) {
	i := strings.LastIndexByte(pod, '-')
	if i <= 0 {
		return "", 0, fmt.Errorf("%q contains no ordinal: %w", pod, errNoOrdinal)
	}

	n, err := strconv.ParseUint(pod[i+1:], 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != pod[i+1:] {
		return "", 0, fmt.Errorf("%q does not end with an ordinal: %w", pod, errNoOrdinal)
	}

	return pod[:i], int(n), invalid(pod, validation.IsDNS1123Subdomain)
}

// invalid returns an error if the check finds problems.
func invalid(name string, check func(string) []string) error {
	if problems := check(name); len(problems) > 0 {
		return fmt.Errorf("%q is invalid: %s", name, strings.Join(problems, "; "))
	}

	return nil
}

var errNoOrdinal = errors.New("only Pods of a StatefulSet have one, as in web-0. " +
	"Run the controller as a StatefulSet, or share its objects by a ring, which needs no ordinals (package shard)")
