// Package store writes objects directly into the etcd of the API server of this machine, and removes them: about ten
// thousand per second, compared with a thousand through the API server. The API server sees these writes like those of
// another replica.
//
// The API server creates the first object. All others are copies of its stored form with another name, UID, and labels.
package store

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

const (
	// prefix begins the keys of all ConfigMaps.
	prefix = "/registry/configmaps/"
	// mark is a key that nobody watches. Writing it yields a new revision of etcd.
	mark = "/clusterring/mark"
	// atOnce is the number of objects per transaction; etcd accepts 128.
	atOnce = 100
	// pageSize is the number of objects that one request removes.
	pageSize = 5000
	// concurrency is the number of concurrent transactions.
	concurrency = 4

	dialTimeout = 10 * time.Second
)

// stored is the form in which the API server stores objects: Protobuf.
var stored = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// Store is the storage of an API server. Create it with [Open]; it is safe for concurrent use.
type Store struct {
	etcd    *clientv3.Client
	objects *objects.Client
}

// Open connects to the etcd at the URL, which must be the storage of the API server of the client. Call Close when it
// is no longer needed.
func Open(etcd string, c *objects.Client) (*Store, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, DialTimeout: dialTimeout, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}

	return &Store{etcd: client, objects: c}, nil
}

// Close closes the connection.
func (s *Store) Close() error { return s.etcd.Close() } //nolint:wrapcheck // says what it is

// Create creates the ConfigMaps of a batch, starting with number first, and returns when the API server has seen all of
// them. It ignores the owner of the batch.
func (s *Store) Create(ctx context.Context, b objects.Batch, first int) error {
	if _, err := s.objects.Post(ctx, b.Ref(first), b.Object(first)); err != nil {
		return err
	}

	key := prefix + b.Namespace + "/" + b.Name(first)

	answer, err := s.etcd.Get(ctx, key)
	if err == nil && len(answer.Kvs) != 1 {
		err = fmt.Errorf("found %d", len(answer.Kvs))
	}

	if err != nil {
		return fmt.Errorf("read %s from etcd: %w", key, err)
	}

	object := &corev1.ConfigMap{}
	if _, _, err := stored.Decode(answer.Kvs[0].Value, nil, object); err != nil {
		return fmt.Errorf("decode %s: does the API server store Protobuf? %w", key, err)
	}

	rest := b.Count - first - 1

	err = objects.Each(ctx, (rest+atOnce-1)/atOnce, concurrency, func(ctx context.Context, i int) error {
		return s.write(ctx, object, b, first+1+i*atOnce)
	})
	if err != nil {
		return err
	}

	return s.await(ctx, b.Namespace, b.Name(b.Count-1))
}

// Clear removes all ConfigMaps of a namespace, and returns when the API server has seen that.
func (s *Store) Clear(ctx context.Context, namespace string) error {
	for more := true; more; {
		// In pages, because etcd sends the deletions of one request to each watcher in one message.
		page, err := s.etcd.Get(ctx, prefix+namespace+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithLimit(pageSize))
		if err == nil && len(page.Kvs) > 0 {
			last := string(page.Kvs[len(page.Kvs)-1].Key)
			_, err = s.etcd.Delete(ctx, string(page.Kvs[0].Key), clientv3.WithRange(last+"\x00"))
		}

		if err != nil {
			return fmt.Errorf("remove the ConfigMaps of %s from etcd: %w", namespace, err)
		}

		more = page.More
	}

	return s.await(ctx, namespace, "none")
}

// write writes one transaction of copies of an object, starting with number from.
func (s *Store) write(ctx context.Context, o *corev1.ConfigMap, b objects.Batch, from int) error {
	var puts []clientv3.Op

	for i := from; i < min(from+atOnce, b.Count); i++ {
		object := *o // the changed fields are not shared
		object.Name, object.UID, object.Labels = b.Name(i), uuid.NewUUID(), nil

		if b.Labels != nil {
			object.Labels = b.Labels(i)
		}

		var value bytes.Buffer
		if err := stored.Encode(&object, &value); err != nil {
			return fmt.Errorf("encode ConfigMap %s: %w", object.Name, err)
		}

		puts = append(puts, clientv3.OpPut(prefix+b.Namespace+"/"+object.Name, value.String()))
	}

	if _, err := s.etcd.Txn(ctx).Then(puts...).Commit(); err != nil {
		return fmt.Errorf("write objects into etcd: %w", err)
	}

	return nil
}

// await waits until the API server has seen all previous writes: only then does it answer a list from its cache at the
// revision of a write that follows them. All writes of a transaction have one revision, so a list at that revision
// could still miss some of them.
func (s *Store) await(ctx context.Context, namespace, name string) error {
	now, err := s.etcd.Put(ctx, mark, "")
	if err != nil {
		return fmt.Errorf("write a revision into etcd: %w", err)
	}

	// A list of the latest version makes etcd report its revision to the cache.
	latest := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	cached := latest
	cached.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	cached.ResourceVersion = strconv.FormatInt(now.Header.Revision, 10)

	configMaps := s.objects.Metadata.Resource(objects.ConfigMaps.GroupVersionResource).Namespace(namespace)

	return objects.Until(ctx, "the API server has seen the writes to etcd", func(ctx context.Context) (bool, error) {
		for _, options := range []metav1.ListOptions{latest, cached} {
			_, err := configMaps.List(ctx, options)
			if apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) {
				return false, nil // its cache lags behind
			}

			if err != nil {
				return false, fmt.Errorf("list ConfigMaps: %w", err)
			}
		}

		return true, nil
	})
}
