package balance_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/demo/internal/balance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica answers each line with its name and the line, and returns its address and how to stop it.
func replica(t *testing.T, name, at string) (address string, stop func()) {
	t.Helper()

	listener, err := net.Listen("tcp", at)
	require.NoError(t, err)

	done := make(chan struct{})
	go func() {
		defer close(done)

		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			line := make([]byte, 1)
			_, _ = io.ReadFull(conn, line)
			_, _ = conn.Write([]byte(name + string(line)))
			_ = conn.Close()
		}
	}()

	return listener.Addr().String(), func() {
		require.NoError(t, listener.Close())
		<-done
	}
}

// ask returns what comes back for one byte over a new connection.
func ask(t *testing.T, address string) string {
	t.Helper()

	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)

	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = conn.Write([]byte("?"))
	require.NoError(t, err)

	answer, _ := io.ReadAll(conn) // reset where there is no replica

	return string(answer)
}

func TestForwarder(t *testing.T) {
	a, stopA := replica(t, "a", "127.0.0.1:0")
	b, stopB := replica(t, "b", "127.0.0.1:0")
	f, err := balance.Listen(a, b)
	require.NoError(t, err)

	require.ElementsMatch(t, []string{"a?", "b?"}, []string{ask(t, f.Address()), ask(t, f.Address())}, "in turn")

	stopA()

	for range 4 {
		require.Equal(t, "b?", ask(t, f.Address()), "whoever is left")
	}
	stopB()
	require.Empty(t, ask(t, f.Address()), "nobody is left")

	_, stopA = replica(t, "a", a)
	require.Equal(t, "a?", ask(t, f.Address()), "back again")
	stopA()

	require.NoError(t, f.Close())
	_, err = net.Dial("tcp", f.Address())
	require.Error(t, err)
}

func TestCloseEndsOpenConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := balance.Listen(listener.Addr().String())
	require.NoError(t, err)
	client, err := net.Dial("tcp", f.Address())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(server, make([]byte, 1))
	require.NoError(t, err)

	require.NoError(t, f.Close())

	require.NoError(t, client.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	require.NoError(t, listener.Close())
}
