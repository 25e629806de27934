package rings

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Namespaces is the resource of namespaces.
var Namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")

// Objects reads the metadata of objects from the API server, with the rights of one client. Each call is one request
// for the latest state. Nothing is cached or watched, so that the service costs nothing without queries, and answers
// are up to date. It is safe for concurrent use; create it with [NewObjects].
type Objects struct {
	// Turns are the answers that can read lists at a time.
	Turns *semaphore.Weighted

	client metadata.Interface
}

// maxLists is how many answers read lists at a time. Each has a page of at most 8 MiB, which needs up to five times as
// much memory.
const maxLists = 2

// NewObjects returns a reader that uses the given configuration and client. It fails if the configuration is not valid.
func NewObjects(config *rest.Config, client *http.Client) (*Objects, error) {
	c, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), client)
	if err != nil {
		return nil, fmt.Errorf("make a client for metadata: %w", err)
	}

	return &Objects{client: c, Turns: semaphore.NewWeighted(maxLists)}, nil
}

// Get reads one object, with its managed fields. The namespace of a cluster-scoped object is empty. It fails with
// [ErrNotFound], [ErrNotServed], [ErrForbidden], [ErrUnavailable] or the error of the context.
func (o *Objects) Get(
	ctx context.Context, gvr schema.GroupVersionResource, id types.NamespacedName,
) (*metav1.PartialObjectMetadata, error) {
	object, err := o.client.Resource(gvr).Namespace(id.Namespace).Get(ctx, id.Name, metav1.GetOptions{})
	if err != nil {
		return nil, classify(ctx, "read "+gvr.GroupResource().String()+" "+strings.TrimPrefix(id.String(), "/"), err)
	}

	return object, nil
}

// List reads one page of objects with their managed fields, all as they were at one time, in the order of namespaces,
// then names. Without a namespace, it lists all namespaces. The page has at most 8 MiB, so it can have fewer objects
// than the limit. It fails with [ErrExpired] if the list began too long ago to continue (begin again), and with
// [ErrRejected], [ErrNotServed], [ErrForbidden], [ErrUnavailable] or the error of the context.
func (o *Objects) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, options metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	list, err := o.client.Resource(gvr).Namespace(namespace).List(leases.Bounded(ctx), options)
	for errors.Is(err, leases.ErrTooLarge) && options.Limit > 1 {
		options.Limit = leases.Smaller(options.Limit)
		list, err = o.client.Resource(gvr).Namespace(namespace).List(leases.Bounded(ctx), options)
	}

	if err != nil {
		return nil, classify(ctx, "list "+gvr.GroupResource().String(), err)
	}

	return list, nil
}

// listSize is the page size of lists that are not part of an answer.
const listSize = 500

// Pages calls yield with each page of a list of the objects that the selector selects. If the list expires, it
// continues at the same position in the current state, so that it does not miss objects that exist all the time. It
// fails as [Objects.List] or yield does.
func (o *Objects) Pages(
	ctx context.Context, gvr schema.GroupVersionResource, selector string,
	yield func([]metav1.PartialObjectMetadata) error,
) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: listSize}

	for {
		page, err := o.List(ctx, gvr, "", options)
		if next := resources.Continuation(err); next != "" && next != options.Continue {
			options.Continue = next
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

		// after a page that was too large, small ones
		options.Continue, options.Limit = page.Continue, min(2*max(int64(len(page.Items)), 1), listSize)
	}
}

// between is the maximum number of cached intermediate objects per answer.
const between = 1000

// Ancestors returns a finder of the objects that others follow. Its cache is for one answer.
func (o *Objects) Ancestors() resources.Ancestors {
	return resources.NewBook(resources.BookOptions{
		Read: o.Get, Size: between, Remember: time.Hour, Clock: clock.RealClock{},
	})
}

// The ways in which a request to the API server fails. An error wraps exactly one of these and the error of the API
// server, or the error of the context if the context has ended.
var (
	// ErrForbidden: the service may not read this.
	ErrForbidden = errors.New("not readable")
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("no such object")
	// ErrNotServed: the API server does not serve the resource in this version.
	ErrNotServed = errors.New("no such resource")
	// ErrExpired: the list cannot be continued, because it began too long ago.
	ErrExpired = errors.New("the list has expired")
	// ErrRejected: the API server rejects the request: the selector or the continue token is malformed.
	ErrRejected = errors.New("invalid request")
	// ErrUnavailable: the API server cannot be reached, or cannot answer now.
	ErrUnavailable = errors.New("the API server does not answer")
)

// classify wraps the error of a request with one of the errors above.
func classify(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}

	if kind := way(err); !errors.Is(kind, ErrForbidden) {
		return fmt.Errorf("%s: %w: %w", what, kind, err)
	}

	return fmt.Errorf("%w: this server may not %s: grant it get and list, by a ClusterRole with the label %s=true: %w",
		ErrForbidden, what, contract.LabelAggregateToRingQuery, err)
}

func way(err error) error {
	switch {
	// Without valid credentials, the service may not read anything either.
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return ErrForbidden
	case resources.IsGone(err):
		return ErrNotFound
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err):
		return ErrNotServed
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return ErrExpired
	case apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		return ErrRejected
	default:
		return ErrUnavailable
	}
}

// Errors of answers, except those of the caller's context and internal errors. An error wraps one of these and adds
// details.
var (
	// ErrInvalid: the question is not valid. The error is an [InvalidError].
	ErrInvalid = errors.New("invalid question")
	// ErrRingNotFound: there is no such ring.
	ErrRingNotFound = errors.New("no such ring")
	// ErrNotAdded: no ring in question shards the object.
	ErrNotAdded = errors.New("not sharded")
	// ErrOwnerNeeded: the object follows its owner, and the question does not name the owner.
	ErrOwnerNeeded = errors.New("owner needed")
	// ErrLabelsNeeded: the key of the object, or of its owner, is a label, or the ring selects objects by labels, the
	// object does not exist, and the question contains no labels.
	ErrLabelsNeeded = errors.New("labels needed")
	// ErrNotReady: the caches of the server are not filled yet.
	ErrNotReady = errors.New("not ready")
)

// InvalidError describes what is wrong with a question, with at least one entry. A field is its path in the request,
// such as "object.namespace". The description states what is wrong and what would be right. It wraps [ErrInvalid].
type InvalidError []*errdetails.BadRequest_FieldViolation

// Invalid returns an [InvalidError] about one field.
func Invalid(field, description string) error {
	return InvalidError{{Field: field, Description: description}}
}

// Error implements error.
func (e InvalidError) Error() string {
	all := make([]string, 0, len(e))
	for _, v := range e {
		all = append(all, v.GetField()+" "+v.GetDescription())
	}

	return strings.Join(all, "; ")
}

// Unwrap returns [ErrInvalid].
func (InvalidError) Unwrap() error { return ErrInvalid }
