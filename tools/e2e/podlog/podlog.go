// Package podlog follows the logs of a ring's pods, from each one's first line to its last, and reads from them who worked on what
// and when. It wants controllers that write their history to standard output, as the example does with --history-file=-.
//
// A pod that is gone has no log any more. So the logs are followed from the moment the pods start, and not read at the end.
package podlog

import (
	"bufio"
	"bytes"
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
	pod, node string
	// lines counts all lines that were read; text are those of the history.
	lines int
	text  bytes.Buffer
	// ended is when the log was seen to end, zero while it goes on.
	ended time.Time
}

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

// Spans returns the reconciles that were recorded until now, closed: one without an end ends when its container's log does, or now.
// Start and End count from 1970. Pods of one node are compared by its monotonic clock, those of different nodes by their times of
// day, which clusters keep together. It returns an error if the logs are not what they should be, or could not be found.
func (c *Collector) Spans() ([]history.Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	epochs := map[string]time.Time{} // by node: when its monotonic clock began
	var spans []history.Span
	logs := slices.SortedFunc(maps.Values(c.logs), func(a, b *log) int { return strings.Compare(a.pod, b.pod) })
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
		end := now
		if !l.ended.IsZero() {
			end = l.ended
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
	l := &log{pod: pod.Name, node: pod.Spec.NodeName}
	c.logs[id] = l
	c.group.Go(func() { c.follow(ctx, id, l) })
}

// current returns the container that the pod runs or ran last.
func current(pod *corev1.Pod) (id container, started bool) {
	if len(pod.Status.ContainerStatuses) == 0 {
		return container{}, false
	}
	status := pod.Status.ContainerStatuses[0]
	return container{pod.UID, status.RestartCount}, status.State.Running != nil || status.State.Terminated != nil
}

// follow reads a log to its end. A log that breaks off though its container runs is read again.
func (c *Collector) follow(ctx context.Context, id container, l *log) {
	for ctx.Err() == nil {
		err := c.read(ctx, l)
		if ctx.Err() != nil {
			return
		}
		ended := c.clock.Now()
		if err != nil && !errors.Is(err, io.EOF) {
			c.pause(ctx)
		}
		pod, err := c.clients.CoreV1().Pods(c.namespace).Get(ctx, l.pod, metav1.GetOptions{})
		now, _ := current(podOf(pod))
		if err == nil && now == id && pod.Status.ContainerStatuses[0].State.Running != nil && pod.DeletionTimestamp == nil {
			c.pause(ctx)
			continue
		}
		c.mu.Lock()
		l.ended = ended
		c.mu.Unlock()
		return
	}
}

// podOf returns the pod, or an empty one in place of none.
func podOf(pod *corev1.Pod) *corev1.Pod {
	if pod == nil {
		return &corev1.Pod{}
	}
	return pod
}

// read reads the lines that were not read before.
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

func (c *Collector) pause(ctx context.Context) {
	timer := c.clock.NewTimer(again)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
