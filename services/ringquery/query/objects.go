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

// pages hands all objects of a list to yield, page by page. If the list expires on the way, it goes on from the same place
// with what there is by then, so that no object is missed that is there all the time.
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

// continuation returns where the API server offers to go on with a list that has expired; empty if it does not.
func continuation(err error) string {
	var status apierrors.APIStatus
	if !errors.Is(err, metadata.ErrExpired) || !errors.As(err, &status) {
		return ""
	}

	return status.Status().Continue
}

// readable makes an error of reading objects one that says what to do about it.
func readable(err error, resource string) error {
	if !errors.Is(err, metadata.ErrForbidden) {
		return err
	}

	return fmt.Errorf("%w: this server may not list %s: grant it get and list, by a ClusterRole with the label %s=true: %w",
		rings.ErrNotReadable, resource, v1alpha1.LabelAggregateToRingQuery, err)
}
