package resources

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsGone reports whether the error of a request for one object means that the object does not exist. If an API server does not
// serve the resource, or not in that version, it also answers "not found", which proves nothing about the object. In that case,
// only its mux answers; it sends no Status, and the client records this.
func IsGone(err error) bool {
	var status apierrors.APIStatus

	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
