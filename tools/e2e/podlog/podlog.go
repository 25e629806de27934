// Package podlog follows the logs of a ring's pods, from each one's first line to its last, and reads from them who worked on what
// and when. It wants controllers that write their history to standard output, as the example does with --history-file=-.
//
// A pod that is gone has no log any more, nor has a container that was started again. So the logs are followed from the moment the pods
// start, and not read at the end.
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

	"github.com/clusterring/clusterring/tools/example/history"
)

// again is when pods are looked at again, and when a log that broke off is read again.
const again = 250 * time.Millisecond

// marker begins a line of the history; all else is what the program logs.
var marker = []byte(`{"event":"`)

// Collector follows the logs of one namespace. Make it with [Follow]; it is safe for concurrent use.
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

// log is what one container has written so far.
type log struct {
	id        container
	pod, node string
	// lines counts all lines that were read, first is the first of them; text are those of the history.
	lines int
	first []byte
	text  bytes.Buffer
	// ended is when the log was seen to end, zero while it goes on. died is the latest time at which the container can have ended, as
	// the kubelet says; zero if that is not known.
	ended, died time.Time
}

// errAnother says that a log is no longer, or not yet, that of the container that it was asked for.
var errAnother = errors.New("the log is that of another container")

// Follow begins to follow every pod that is or will be in the namespace, until the context ends.
func Follow(ctx context.Context, clients kubernetes.Interface, namespace string, clk clock.Clock) *Collector {
	c := &Collector{clients: clients, namespace: namespace, clock: clk, logs: map[container]*log{}}
	c.group.Go(func() { c.find(ctx) })
	return c
}

// Wait returns once nothing is followed any more, which is soon after the context has ended.
func (c *Collector) Wait() { c.group.Wait() }

// Lines returns how many lines of history have been read.
func (c *Collector) Lines() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, l := range c.logs {
		n += bytes.Count(l.text.Bytes(), []byte("\n"))
	}
	return n
}

// Spans returns the reconciles that were recorded until now, closed: one without an end ends when its container does, or now. That is
// when its log is seen to end, which can be seconds late, or, if it was started again, when the kubelet says or when the next one works.
// Start and End count from 1970. Pods of one node are compared by its monotonic clock, those of different nodes by their times of
// day, which clusters keep together. It returns an error if the logs are not what they should be, or could not be found.
func (c *Collector) Spans() ([]history.Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	epochs := map[string]time.Time{}  // by node: when its monotonic clock began
	next := map[types.UID]time.Time{} // by pod: when the container after the one looked at worked first
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

// earliest returns the first of the times that are not zero.
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

// begin follows the pod's container, if it has started and is not followed already.
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
		before.died = last.FinishedAt.Add(time.Second) // it is cut to seconds
	}
	l := &log{id: id, pod: pod.Name, node: pod.Spec.NodeName}
	c.logs[id] = l
	c.group.Go(func() { c.follow(ctx, l) })
}

// current returns the container that the pod runs or ran last.
func current(pod *corev1.Pod) (id container, started bool) {
	if len(pod.Status.ContainerStatuses) == 0 {
		return container{}, false
	}
	status := pod.Status.ContainerStatuses[0]
	return container{pod.UID, status.RestartCount}, status.State.Running != nil || status.State.Terminated != nil
}

// follow reads a log to its end. A log that breaks off though its container runs, for all that the API server knows, is read again.
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
		now, _ := current(podOf(pod))
		if err == nil && now == l.id && pod.Status.ContainerStatuses[0].State.Running != nil && pod.DeletionTimestamp == nil {
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

// podOf returns the pod, or an empty one in place of none.
func podOf(pod *corev1.Pod) *corev1.Pod {
	if pod == nil {
		return &corev1.Pod{}
	}
	return pod
}

// read reads the lines that were not read before. A kubelet gives the log of the container that runs, which may be a newer one than the
// API server knows of: its first line tells.
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
			return err //nolint:wrapcheck // most often the end
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

// own says whether a log that begins with this line is that of the container, which then has it for good. Lines have their time, so no
// two containers of a pod begin with the same.
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
