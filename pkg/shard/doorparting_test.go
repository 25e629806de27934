package shard_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An API server sends all calls over one connection. A Pod that was told to stop ends it with an answer, because a call that is on its way when the
// server closes the connection would fail.
func TestAStoppingPodEndsConnectionsOfWebhooksWithAnAnswer(t *testing.T) {
	f := newOperators(t)
	certs, _ := f.certificate()
	s := newService(f)
	stop := f.webhookPod(s, certs, "pod")
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, //nolint:gosec // the certificate is not what is tested
	}

	t.Cleanup(transport.CloseIdleConnections)

	address, probe := "", ""
	for is, serves := range s.pods { // the only one
		address, probe = is, serves
	}

	// call reports whether a call of the webhook used the connection of the call before it.
	call := func() (reused bool) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}

		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost,
			"https://"+address+"/validate--v1-configmap", strings.NewReader("{}"))
		require.NoError(t, err)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())

		return reused
	}

	require.False(t, call())
	require.True(t, call())

	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()

	f.eventually(func() bool { return status(probe) != http.StatusOK }, "the Pod was told to stop")
	require.True(t, call())
	f.eventually(func() bool { return !call() }, "the answer ended the connection")
	require.NoError(t, receive(f, stopped, "the Pod stops"))
}
