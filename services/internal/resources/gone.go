package resources

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsGone reports whether the error of a request about one object says that there is no such object. An API server that does not
// serve the resource, or not in that version, says "not found", too, and nothing about the object: about a path nobody but its mux
// answers, and that sends no Status, which the client notes.
func IsGone(err error) bool {
	var status apierrors.APIStatus

	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
