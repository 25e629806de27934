package resources

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// IsGone reports whether the error of a request for one object means that the object does not exist. If an API server does not
// serve the resource, or not in that version, it also answers "not found", which proves nothing about the object. In that case,
// only its mux answers; it sends no Status, and the client records this.
func IsGone(err error) bool {
	var status apierrors.APIStatus

	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Continuation returns the token with which a list can continue at a newer version, from the error that the list has expired;
// empty for other errors.
func Continuation(err error) (token string) {
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		return status.Status().Continue
	}

	return ""
}

// Older reports whether the resource version a of an object precedes b; false if they are not comparable.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)

	return err == nil && order < 0
}
