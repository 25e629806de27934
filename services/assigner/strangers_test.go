package assigner_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// path returns the path of the ring's webhook as it is registered.
func (f *fixture) path() string {
	f.t.Helper()

	c := f.configuration()
	require.NotNil(f.t, c)

	to, err := url.Parse(*c.Webhooks[0].ClientConfig.URL)
	require.NoError(f.t, err)

	for _, w := range c.Webhooks {
		require.Equal(f.t, to.String(), *w.ClientConfig.URL)
	}

	return to.Path
}

// strayed returns how many requests were sent to paths that are not registered.
func strayed(t *testing.T) (total int) {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		if family.GetName() == "clusterring_assigner_admission_errors_total" {
			for _, m := range family.GetMetric() {
				if m.GetLabel()[0].GetValue() == "404" {
					total += int(m.GetCounter().GetValue())
				}
			}
		}
	}

	return total
}

// post sends a valid review about an object of the ring to a path of a replica, and returns the answer.
func (c *caller) post(t *testing.T, path string) (status int, body string) {
	t.Helper()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, (*c.service.Load())[0].url+path, bytes.NewReader(c.review))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")

	res, err := c.client.Do(req)
	require.NoError(t, err)

	defer res.Body.Close()

	all, err := io.ReadAll(res.Body)
	require.NoError(t, err)

	return res.StatusCode, string(all)
}

// Whoever reaches the port of the webhook learns nothing, and calls of the API server are answered: by replicas that start at the same time, after a
// restart, and after the configuration, which keeps the secret, was deleted or replaced.
func TestStrangersLearnNothing(t *testing.T) {
	f := newFixture(t, "strangers", "a")
	first := launch(t, f.Plane)
	second := launch(t, f.Plane, "--webhook-url="+first.url)

	hidden := func(replicas ...*replica) {
		t.Helper()

		path := f.path()
		require.Regexp(t, "^"+contract.WebhookPath(f.name)+"/[0-9a-f]{32}$", path)

		for _, r := range replicas {
			c := f.caller(r)
			eventually(t, func() bool {
				status, body := c.post(t, path)

				return status == http.StatusOK && strings.Contains(body, `"patch"`)
			}, "the path is answered")

			for _, wrong := range []string{contract.WebhookPath(f.name), contract.WebhookPath(f.name) + "/00112233445566778899aabbccddeeff", path + "0", contract.WebhookPath("made-up"), "/"} {
				status, body := c.post(t, wrong)
				require.Equal(t, http.StatusNotFound, status, wrong)
				require.Equal(t, "404 page not found\n", body, wrong)
			}
		}
	}

	restart := func() {
		t.Helper()

		first = launchAt(t, f.Plane, strings.TrimPrefix(first.url, "https://"), "--webhook-url="+first.url)
		eventually(t, first.ready, "the assigner becomes ready again")
	}

	eventually(t, first.ready, "the first replica becomes ready")
	eventually(t, second.ready, "the second replica becomes ready")
	f.registered()
	hidden(first, second)

	path := f.path()

	require.NoError(t, f.Client.Delete(t.Context(), f.configuration()))
	eventually(t, func() bool { return f.configuration() != nil }, "the configuration is restored")
	f.asked()
	hidden(first, second)
	require.Equal(t, path, f.path())

	first.stop()
	second.stop()

	restart()
	f.asked()
	hidden(first)
	require.Equal(t, path, f.path())

	first.stop()
	require.NoError(t, f.Client.Delete(context.WithoutCancel(t.Context()), f.configuration()))

	restart()
	eventually(t, func() bool { return f.configuration() != nil }, "the ring is registered again")
	f.asked()
	hidden(first)
	require.NotEqual(t, path, f.path())

	status, _ := f.caller(first).post(t, path)
	require.Equal(t, http.StatusNotFound, status, "nobody should be called at the former path")

	// As an earlier version has registered it.
	c := f.configuration()
	before := c.DeepCopy()

	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig.URL = new(first.url + contract.WebhookPath(f.name))
	}

	require.NoError(t, f.Client.Patch(t.Context(), c, client.MergeFrom(before)))
	eventually(t, func() bool { return f.path() != contract.WebhookPath(f.name) }, "the path gets a secret")
	f.asked()
	hidden(first)
}
