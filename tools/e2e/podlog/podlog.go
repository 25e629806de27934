// Package podlog follows the complete logs of a ring's pods, and reads the recorded reconciles from them. The
// controllers must write their history to standard output, as the example does with --history-file=-.
//
// The logs are followed from the start of the pods instead of read at the end, because the logs of deleted pods and of
// restarted containers are lost.
package podlog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

// again is the interval between lists of pods, and the pause before a broken log is read again.
const again = 250 * time.Millisecond

// marker is the prefix of history lines. All other lines are logs.
var marker = []byte(`{"event":"`)

// Collector follows the logs of one namespace. Create it with [Follow]; it is safe for concurrent use.
type Collector struct {
	clients   kubernetes.Interface
	namespace string
	clock     clock.Clock
	group     sync.WaitGroup

	mu   sync.Mutex
	logs map[container]*log
}

// container is one start of a pod's container.
type container struct {
	pod      types.UID
	restarts int32
}

// log is the log of one container so far.
type log struct {
	id        container
	pod, node string
	// lines counts the lines read, first is the first line, and text contains the history lines.
	lines int
	first []byte
	text  bytes.Buffer
	// ended is when the end of the log was seen, zero before. died is the latest possible end of the container according
	// to the kubelet; zero if unknown.
	ended, died time.Time
}

// errAnother is the error for a log of another container of the pod than the requested one.
var errAnother = errors.New("the log belongs to another container")

// Follow follows all current and future pods of the namespace until ctx ends.
func Follow(ctx context.Context, clients kubernetes.Interface, namespace string, clk clock.Clock) *Collector {
	c := &Collector{clients: clients, namespace: namespace, clock: clk, logs: map[container]*log{}}
	c.group.Go(func() { c.find(ctx) })

	return c
}

// Wait returns when all logs have ended, soon after the end of ctx.
func (c *Collector) Wait() { c.group.Wait() }

// Spans returns the reconciles recorded so far. A reconcile without an end ends with its container, or now. The end of
// a container is the end of its log, which can be seconds late, or if the container was restarted, the time that the
// kubelet reports or the first reconcile of the next container. Start and End count from 1970. Times of one node use
// its monotonic clock; times of different nodes use their synchronized wall clocks. It returns an error if a log is
// malformed.
func (c *Collector) Spans() ([]history.Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := c.clock.Now()
	epochs := map[string]time.Time{}  // by node: when its monotonic clock began
	next := map[types.UID]time.Time{} // by pod: the first reconcile of the next container

	var spans []history.Span

	logs := slices.SortedFunc(maps.Values(c.logs), func(a, b *log) int {
		return cmp.Or(strings.Compare(a.pod, b.pod), cmp.Compare(b.id.restarts, a.id.restarts))
	})
	for _, l := range logs {
		var r history.Reader
		if err := r.Read(bytes.NewReader(l.text.Bytes())); err != nil {
			return nil, fmt.Errorf("log of pod %s/%s: %w", c.namespace, l.pod, err)
		}

		epoch, known := epochs[l.node]
		if !known && len(r.Spans()) > 0 {
			epoch = r.Time(0)
			epochs[l.node] = epoch
		}

		end := earliest(now, l.ended, l.died, next[l.id.pod])
		if len(r.Spans()) > 0 {
			next[l.id.pod] = epoch.Add(r.Spans()[0].Start)
		}

		for _, s := range r.Spans() {
			s.Start += time.Duration(epoch.UnixNano())
			if s.End == 0 {
				s.End = time.Duration(end.UnixNano())
			} else {
				s.End += time.Duration(epoch.UnixNano())
			}

			spans = append(spans, s)
		}
	}

	return spans, nil
}

// earliest returns the earliest nonzero time.
func earliest(times ...time.Time) time.Time {
	return slices.MinFunc(slices.DeleteFunc(times, time.Time.IsZero), time.Time.Compare)
}

// find looks for new containers until the context ends.
func (c *Collector) find(ctx context.Context) {
	for ctx.Err() == nil {
		pods, err := c.clients.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range pods.Items {
				c.begin(ctx, &pods.Items[i])
			}
		}
		c.pause(ctx)
	}
}

// begin follows the pod's container if it has started and is not followed yet.
func (c *Collector) begin(ctx context.Context, pod *corev1.Pod) {
	id, started := current(pod)
	if !started {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	if _, known := c.logs[id]; known {
		return
	}

	last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if before := c.logs[container{id.pod, id.restarts - 1}]; before != nil && last != nil && !last.FinishedAt.IsZero() {
		before.died = last.FinishedAt.Add(time.Second) // truncated to seconds
	}

	l := &log{id: id, pod: pod.Name, node: pod.Spec.NodeName}
	c.logs[id] = l
	c.group.Go(func() { c.follow(ctx, l) })
}

// current returns the current or last container of the pod.
func current(pod *corev1.Pod) (id container, started bool) {
	if len(pod.Status.ContainerStatuses) == 0 {
		return container{}, false
	}

	status := pod.Status.ContainerStatuses[0]

	return container{pod.UID, status.RestartCount}, status.State.Running != nil || status.State.Terminated != nil
}

// follow reads a log to its end. If the log ends while the container is running according to the API server, follow
// reads it again.
func (c *Collector) follow(ctx context.Context, l *log) {
	var ended time.Time

	for ctx.Err() == nil {
		err := c.read(ctx, l)
		if ctx.Err() != nil {
			return
		}

		if errors.Is(err, errAnother) && !ended.IsZero() {
			c.end(l, ended)
			return
		}

		ended = c.clock.Now()
		if err != nil && !errors.Is(err, io.EOF) {
			c.pause(ctx)
		}

		pod, err := c.clients.CoreV1().Pods(c.namespace).Get(ctx, l.pod, metav1.GetOptions{})
		if err == nil && running(pod, l.id) {
			c.pause(ctx)
			continue
		}
		c.end(l, ended)

		return
	}
}

func (c *Collector) end(l *log, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()

	l.ended = at
}

// running reports whether the container is the pod's current one, and runs.
func running(pod *corev1.Pod, id container) bool {
	now, _ := current(pod)

	return now == id && pod.Status.ContainerStatuses[0].State.Running != nil && pod.DeletionTimestamp == nil
}

// read reads the new lines of a log. The kubelet returns the log of the running container, which may be newer than the
// API server knows. The first line identifies the container.
func (c *Collector) read(ctx context.Context, l *log) error {
	stream, err := c.clients.CoreV1().Pods(c.namespace).GetLogs(l.pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("follow the log of pod %s/%s: %w", c.namespace, l.pod, err)
	}
	defer func() { _ = stream.Close() }()

	lines := bufio.NewReader(stream)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err //nolint:wrapcheck // mostly io.EOF
		}

		if number == 1 && !c.own(l, line) {
			return errAnother
		}

		if number <= l.lines {
			continue
		}
		c.mu.Lock()

		l.lines = number
		if bytes.HasPrefix(line, marker) {
			l.text.Write(line)
		}
		c.mu.Unlock()
	}
}

// own reports whether a log with this first line belongs to the container, and assigns it. Lines contain timestamps, so
// the logs of two containers of a pod have different first lines.
func (c *Collector) own(l *log, first []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if l.first != nil {
		return bytes.Equal(l.first, first)
	}

	for _, other := range c.logs {
		if other.id.pod == l.id.pod && bytes.Equal(other.first, first) {
			return false
		}
	}

	l.first = first

	return true
}

func (c *Collector) pause(ctx context.Context) {
	timer := c.clock.NewTimer(again)
	defer timer.Stop()

	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
