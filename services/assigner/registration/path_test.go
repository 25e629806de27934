package registration

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/clusterring/clusterring/services/internal/resources"
)

func TestSecretsStay(t *testing.T) {
	ring := ringWith("example")
	atURL := Target{URL: "https://127.0.0.1:9443/base/"}

	var s secrets

	none := &admissionregistrationv1.MutatingWebhookConfiguration{}
	first := s.of("example", none)
	require.Regexp(t, secret, first)
	require.Equal(t, first, s.of("example", none), "a configuration that is deleted should get the same secret again")
	require.NotEqual(t, first, s.of("other", none))

	for _, target := range []Target{inService, atURL} {
		have := Configuration(ring, resources.Resolve(mapper(), ring.Spec), target, secretOfTests)
		require.Equal(t, "/webhooks/sharder/clusterring/example/"+secretOfTests, pathOf(have))
		require.Equal(t, secretOfTests, s.of("example", have), "the secret of the configuration counts")
		require.NotEqual(t, secretOfTests, s.of("exam", have), "it is that of another ring")
	}

	for _, made := range []string{"", "short", secretOfTests + "/" + secretOfTests} {
		have := Configuration(ring, resources.Resolve(mapper(), ring.Spec), inService, made)
		require.Equal(t, secretOfTests, s.of("example", have), made)
	}

	s.forget("example")
	require.NotEqual(t, secretOfTests, s.of("example", none))
}

func TestMessagesContainNoSecret(t *testing.T) {
	const path = `Post "https://assigner.sharding-system.svc:443/webhooks/sharder/clusterring/example/`

	require.Equal(t, path+`…?timeout=1s": EOF`, withoutSecrets(path+secretOfTests+`?timeout=1s": EOF`))
}
