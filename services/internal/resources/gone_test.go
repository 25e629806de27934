package resources

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestIsGone(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "x")
	unserved := apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", schema.GroupResource{Resource: "configmaps"}, "x", "404 page not found", 0, true)
	silent := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}}

	require.True(t, IsGone(gone))
	require.True(t, IsGone(fmt.Errorf("read it: %w", gone)))

	for name, err := range map[string]error{
		"the resource is not served": unserved, "nobody says what is not found": silent, "another error": errors.New("x"), "none": nil,
		"a conflict": apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")),
	} {
		require.False(t, IsGone(err), name)
	}
}

func TestContinuation(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "go on here"

	require.Equal(t, "go on here", Continuation(fmt.Errorf("wrapped: %w", expired)))
	require.Empty(t, Continuation(apierrors.NewConflict(schema.GroupResource{}, "a", nil)))
	require.Empty(t, Continuation(nil))
}
