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
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// again is the interval between lists of pods, and the pause before a log that has ended is read again.
const again = 250 * time.Millisecond

// marker is the prefix of history lines. All other lines are logs.
var marker = []byte(`{"event":"`)

// Collector follows the logs of one namespace. Create it with [Follow]; it is safe for concurrent use.
type Collector struct {
	pods      typedcorev1.PodInterface
	namespace string
	group     sync.WaitGroup

	mu   sync.Mutex
	logs map[types.UID]*log
}

// log is the log of one pod so far.
type log struct {
	pod, node string
	// lives are the containers of the pod, one after the other.
	lives []*life
}

// life is the log of one container so far.
type life struct {
	// lines counts the lines read, first is the first line, and text contains the history lines.
	lines int
	first []byte
	text  bytes.Buffer
	// ended is when the log was seen to end; zero if it has gone on since.
	ended time.Time
}

// Follow follows all current and future pods of the namespace until ctx ends.
func Follow(ctx context.Context, clients kubernetes.Interface, namespace string) *Collector {
	c := &Collector{pods: clients.CoreV1().Pods(namespace), namespace: namespace, logs: map[types.UID]*log{}}
	c.group.Go(func() { c.find(ctx) })

	return c
}

// Wait returns when all logs have ended, soon after the end of ctx.
func (c *Collector) Wait() { c.group.Wait() }

// Spans returns the reconciles recorded so far. A reconcile without an end ends with its container, or now. The end of
// a container is the end of its log, which can be seconds late, or the first reconcile of the next container of the
// pod. Start and End count from 1970. Times of one node use its monotonic clock; times of different nodes use their
// synchronized wall clocks. It returns an error if a log is malformed.
func (c *Collector) Spans() ([]history.Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	epochs := map[string]time.Time{} // by node: when its monotonic clock began

	var spans []history.Span

	for _, l := range slices.SortedFunc(maps.Values(c.logs), func(a, b *log) int { return cmp.Compare(a.pod, b.pod) }) {
		end := history.Now().Time

		for _, life := range slices.Backward(l.lives) {
			var r history.Reader
			if err := r.Read(bytes.NewReader(life.text.Bytes())); err != nil {
				return nil, fmt.Errorf("log of pod %s/%s: %w", c.namespace, l.pod, err)
			}

			if len(r.Spans()) == 0 {
				continue
			}

			if _, known := epochs[l.node]; !known {
				epochs[l.node] = r.Time(0)
			}

			epoch := epochs[l.node]

			if !life.ended.IsZero() && life.ended.Before(end) {
				end = life.ended
			}

			at := time.Duration(epoch.UnixNano())
			for _, s := range r.Spans() {
				s.Start, s.End = at+s.Start, at+cmp.Or(s.End, end.Sub(epoch))
				spans = append(spans, s)
			}

			end = epoch.Add(r.Spans()[0].Start)
		}
	}

	return spans, nil
}

// find looks for new pods until the context ends.
func (c *Collector) find(ctx context.Context) {
	for ctx.Err() == nil {
		pods, err := c.pods.List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range pods.Items {
				c.begin(ctx, &pods.Items[i])
			}
		}

		pause(ctx)
	}
}

// begin follows the pod if it is not followed yet.
func (c *Collector) begin(ctx context.Context, pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if _, known := c.logs[pod.UID]; !known && pod.Spec.NodeName != "" {
		l := &log{pod: pod.Name, node: pod.Spec.NodeName}
		c.logs[pod.UID] = l
		c.group.Go(func() { c.follow(ctx, pod.UID, l) })
	}
}

// follow reads the log of a pod until the pod is gone or its last container has ended. When the log of a container
// ends, there is more of it if the connection was lost, or the pod has another container.
func (c *Collector) follow(ctx context.Context, uid types.UID, l *log) {
	for ctx.Err() == nil {
		c.read(ctx, l)

		pod, err := c.pods.Get(ctx, l.pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) ||
			err == nil && (pod.UID != uid || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed) {
			return
		}

		pause(ctx)
	}
}

// read reads the new lines of a log, which is that of the pod's running container, or of its last one.
func (c *Collector) read(ctx context.Context, l *log) {
	stream, err := c.pods.GetLogs(l.pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return
	}

	defer func() { _ = stream.Close() }()

	lines := bufio.NewReader(stream)

	for number := 1; err == nil; number++ {
		var line []byte

		line, err = lines.ReadBytes('\n')

		if ctx.Err() != nil {
			return
		}

		c.mu.Lock()
		if err == nil {
			l.add(number, line)
		} else {
			l.end()
		}
		c.mu.Unlock()
	}
}

// add adds a line of the log. Lines contain timestamps, so the logs of two containers of a pod have different first
// lines.
func (l *log) add(number int, line []byte) {
	if number == 1 && (len(l.lives) == 0 || !bytes.Equal(l.last().first, line)) {
		l.end()
		l.lives = append(l.lives, &life{first: line})
	}

	if life := l.last(); number > life.lines {
		life.lines, life.ended = number, time.Time{}

		if bytes.HasPrefix(line, marker) {
			life.text.Write(line)
		}
	}
}

// end notes that the log of the last container has ended.
func (l *log) end() {
	if len(l.lives) > 0 && l.last().ended.IsZero() {
		l.last().ended = history.Now().Time
	}
}

func (l *log) last() *life { return l.lives[len(l.lives)-1] }

func pause(ctx context.Context) { _ = must.Attempt(func() { must.Pause(ctx, again) }) } // what waits looks at ctx
