package quota_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/quota"
)

func TestQuota(t *testing.T) {
	q := quota.New(10, 6)

	give, ok := q.Take("10.0.0.1:1234", 4)
	require.True(t, ok)
	_, ok = q.Take("10.0.0.1:5678", 3)
	require.False(t, ok, "more than one address may have")
	rest, ok := q.Take("[::1]:1234", 6)
	require.True(t, ok)
	_, ok = q.Take("10.0.0.3:1234", 1)
	require.False(t, ok, "more than there is")

	give()

	all, ok := q.Take("10.0.0.3:1234", 4)
	require.True(t, ok)

	rest()
	all()

	_, ok = q.Take("10.0.0.1", 6)
	require.True(t, ok)
}

func TestConnectionsOfAnAddressAreLimited(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	listener = quota.New(4, 2).Listen(listener)
	defer listener.Close()

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()

	// served connects from one of the addresses of this machine, and reports whether the connection is accepted.
	served := func(from byte) (conn net.Conn, ok bool) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })

		_, err = conn.Write([]byte("x"))
		_, read := conn.Read(make([]byte, 1))

		return conn, errors.Join(err, read) == nil
	}

	first, ok := served(1)
	require.True(t, ok)
	_, ok = served(1)
	require.True(t, ok)
	_, ok = served(1)
	require.False(t, ok, "more than one address may have")

	for range 2 {
		_, ok = served(2)
		require.True(t, ok)
	}

	_, ok = served(3)
	require.False(t, ok, "more than there are in all")

	require.NoError(t, first.Close())
	require.Eventually(t, func() bool {
		_, ok := served(3)
		return ok
	}, 10*time.Second, time.Millisecond)
}
