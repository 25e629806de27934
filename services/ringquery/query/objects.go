package query

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// pages calls yield with each page of a list. If the list expires, it continues at the same position in the current state, so that it
// does not miss objects that exist all the time.
func pages(ctx context.Context, r *metadata.Reader, q metadata.Query, yield func([]metav1.PartialObjectMetadata) error) error {
	for {
		page, err := r.List(ctx, q)
		if next := continuation(err); next != "" && next != q.Continue {
			q.Continue = next
			continue
		}

		if err != nil {
			return err
		}

		if err := yield(page.Items); err != nil {
			return err
		}

		if page.Continue == "" {
			return nil
		}

		q.Continue = page.Continue
	}
}

// continuation returns the token with which an expired list can continue. Empty: it cannot.
func continuation(err error) string {
	var status apierrors.APIStatus
	if !errors.Is(err, metadata.ErrExpired) || !errors.As(err, &status) {
		return ""
	}

	return status.Status().Continue
}

// readable adds advice to an error of reading objects.
func readable(err error, resource string) error {
	if !errors.Is(err, metadata.ErrForbidden) {
		return err
	}

	return fmt.Errorf("%w: this server may not list %s: grant it get and list, by a ClusterRole with the label %s=true: %w",
		rings.ErrNotReadable, resource, v1alpha1.LabelAggregateToRingQuery, err)
}
