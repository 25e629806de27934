// Package store puts objects into the storage of the API server of this machine, and removes them, without asking it: some ten
// thousand a second, where the API server takes a thousand. The API server learns of them as of what another replica of it writes.
//
// One object is made by the API server. All others are that one, as it is stored, with another name, UID and labels.
package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

const (
	// prefix begins the keys of all ConfigMaps.
	prefix = "/registry/configmaps/"
	// mark is a key that is nobody's: written, it gives etcd a revision of which there is nothing to tell a watch.
	mark = "/clusterring/mark"
	// atOnce is how many objects are written by one transaction; etcd takes 128.
	atOnce = 100
	// pageSize is how many are removed by one request.
	pageSize = 5000
	// concurrency is how many transactions are under way at a time.
	concurrency = 4

	dialTimeout = 10 * time.Second
	// patience is how long the API server may take to learn of all that was written.
	patience = 5 * time.Minute
	look     = 100 * time.Millisecond
)

// magic begins what an API server stores as Protobuf.
var magic = []byte("k8s\x00") //nolint:gochecknoglobals // a constant

// errForm says that an object is stored in another form than it is here.
var errForm = errors.New("the API server does not store ConfigMaps as Protobuf")

// Store is the storage of an API server. Make it with [Open]; it is safe for concurrent use.
type Store struct {
	etcd    *clientv3.Client
	objects *objects.Client
}

// Open returns the storage of the API server that the client talks to, by the URL of its etcd. Close it when it is no longer needed.
func Open(etcd string, c *objects.Client) (*Store, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, DialTimeout: dialTimeout, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return &Store{etcd: client, objects: c}, nil
}

// Close ends the connection.
func (s *Store) Close() error {
	if err := s.etcd.Close(); err != nil {
		return fmt.Errorf("disconnect from etcd: %w", err)
	}
	return nil
}

// Create creates the objects of a batch of ConfigMaps, from the first on, and returns when the API server knows all of them. The first
// is created by the API server. Concurrency and owner of the batch do not matter.
func (s *Store) Create(ctx context.Context, b objects.Batch, first int) error {
	body, err := b.Body(first)
	if err != nil {
		return err
	}
	if err := s.objects.Do(ctx, objects.Request{Method: http.MethodPost, Path: b.Kind.Path(b.Namespace, ""), Body: body}, nil); err != nil {
		return err
	}
	mold, err := s.mold(ctx, b.Namespace, b.Name(first))
	if err != nil {
		return err
	}
	rest := b.Count - first - 1
	err = objects.Each(ctx, (rest+atOnce-1)/atOnce, concurrency, func(ctx context.Context, i int) error {
		return s.write(ctx, mold, b, first+1+i*atOnce)
	})
	if err != nil {
		return err
	}
	return s.settle(ctx, b.Kind, b.Namespace, b.Name(b.Count-1))
}

// Clear removes all ConfigMaps of a namespace, and returns when the API server knows.
func (s *Store) Clear(ctx context.Context, namespace string) error {
	for more := true; more; {
		// Not all at once: each that watches etcd gets what one request has removed in one message.
		page, err := s.etcd.Get(ctx, prefix+namespace+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(pageSize))
		if err == nil && len(page.Kvs) > 0 {
			last := string(page.Kvs[len(page.Kvs)-1].Key)
			_, err = s.etcd.Delete(ctx, string(page.Kvs[0].Key), clientv3.WithRange(last+"\x00"))
		}
		if err != nil {
			return fmt.Errorf("remove the ConfigMaps of %s from etcd: %w", namespace, err)
		}
		more = page.More
	}
	return s.settle(ctx, objects.ConfigMaps, namespace, "none")
}

// write writes some objects of a batch, from one on.
func (s *Store) write(ctx context.Context, m mold, b objects.Batch, from int) error {
	to := min(from+atOnce, b.Count)
	puts := make([]clientv3.Op, 0, to-from)
	for i := from; i < to; i++ {
		var labels map[string]string
		if b.Labels != nil {
			labels = b.Labels(i)
		}
		value, err := m.cast(b.Name(i), uuid.NewUUID(), labels)
		if err != nil {
			return err
		}
		puts = append(puts, clientv3.OpPut(prefix+b.Namespace+"/"+b.Name(i), string(value)))
	}
	if _, err := s.etcd.Txn(ctx).Then(puts...).Commit(); err != nil {
		return fmt.Errorf("write objects into etcd: %w", err)
	}
	return nil
}

// settle waits until the API server has learned of all that was written until now: it answers what is at least as new from its
// cache, and no sooner. All writes of a transaction have one revision, and the first of them brings the cache there; that it is past
// it, the cache hears from etcd once it was told of all.
func (s *Store) settle(ctx context.Context, kind objects.Kind, namespace, name string) error {
	now, err := s.etcd.Put(ctx, mark, "")
	if err != nil {
		return fmt.Errorf("write a revision into etcd: %w", err)
	}
	path := kind.Path(namespace, "") + "?"
	query := url.Values{"fieldSelector": {"metadata.name=" + name}}
	latest := path + query.Encode()
	query.Set("resourceVersionMatch", "NotOlderThan")
	query.Set("resourceVersion", strconv.FormatInt(now.Header.Revision, 10))
	cached := path + query.Encode()
	err = wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		// Asked for the latest, it makes etcd tell its cache how far that is; or, if it takes long, answers without its cache.
		for _, path := range []string{latest, cached} {
			err := s.objects.Do(ctx, objects.Request{Method: http.MethodGet, Path: path, Accept: listOfMetadata}, nil)
			if apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) {
				return false, nil // it is behind
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the API server knows what was written into etcd: %w", err)
	}
	return nil
}

// listOfMetadata asks for the metadata of a list.
const listOfMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// mold is an object as it is stored, of which others are made.
type mold struct {
	envelope runtime.Unknown
	object   corev1.ConfigMap
}

func (s *Store) mold(ctx context.Context, namespace, name string) (mold, error) {
	key := prefix + namespace + "/" + name
	answer, err := s.etcd.Get(ctx, key)
	if err != nil {
		return mold{}, fmt.Errorf("read %s from etcd: %w", key, err)
	}
	if len(answer.Kvs) != 1 {
		return mold{}, fmt.Errorf("read %s from etcd: there are %d", key, len(answer.Kvs))
	}
	return moldOf(answer.Kvs[0].Value)
}

func moldOf(stored []byte) (m mold, err error) {
	raw, ok := bytes.CutPrefix(stored, magic)
	if !ok {
		return mold{}, errForm
	}
	if err := m.envelope.Unmarshal(raw); err != nil {
		return mold{}, fmt.Errorf("decode a stored object: %w", err)
	}
	if err := m.object.Unmarshal(m.envelope.Raw); err != nil {
		return mold{}, fmt.Errorf("decode a stored ConfigMap: %w", err)
	}
	return m, nil
}

// cast returns another object, as it is stored.
func (m mold) cast(name string, uid types.UID, labels map[string]string) ([]byte, error) {
	object := m.object // what is changed is no part of what they share
	object.Name, object.UID, object.Labels = name, uid, maps.Clone(labels)
	raw, err := object.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode a ConfigMap: %w", err)
	}
	envelope := m.envelope
	envelope.Raw = raw
	whole, err := envelope.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode a stored object: %w", err)
	}
	return append(bytes.Clone(magic), whole...), nil
}
