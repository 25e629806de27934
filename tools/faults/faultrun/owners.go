package faultrun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// OwnersAgree waits until every replica of ringquery agrees with the labels of all objects of the remaining rings (I3).
func (run *Run) OwnersAgree(ctx context.Context) error {
	if len(run.queries) == 0 {
		return errors.New("this case has no ringquery")
	}

	var (
		clients     []diagnosticsv1alpha1.DiagnosticsServiceClient
		connections []*grpc.ClientConn
	)
	defer func() {
		for _, c := range connections {
			_ = c.Close() // nothing to save
		}
	}()

	for _, address := range run.queries {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return fmt.Errorf("connect to ringquery: %w", err)
		}

		connections = append(connections, connection)
		clients = append(clients, diagnosticsv1alpha1.NewDiagnosticsServiceClient(connection))
	}

	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+run.token)

	return run.await(ctx, "every ringquery agrees with all labels (I3)", func(ctx context.Context) ([]string, error) {
		var problems []string
		for _, r := range run.left() {
			problems = append(problems, r.disagreements(ctx, clients)...)
		}

		return problems, nil
	})
}

// disagreements returns the objects whose labels differ from the response of a replica, and the objects on which replicas differ.
func (r *ring) disagreements(ctx context.Context, clients []diagnosticsv1alpha1.DiagnosticsServiceClient) []string {
	const within = 2 * time.Second

	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	newest := slices.DeleteFunc(r.recorder.Newest(), func(v check.Version) bool { return v.Deleted || v.Kind == check.Lease })
	if len(newest) == 0 {
		return []string{r.Name + ": no objects to locate"}
	}

	var problems []string

	for _, v := range newest {
		request := r.question(v, newest)
		if request == nil {
			continue
		}

		var first *diagnosticsv1alpha1.LocateResponse

		for i, c := range clients {
			answer, err := c.Locate(ctx, request)
			switch {
			case err != nil:
				return append(problems, fmt.Sprintf("%s: ringquery %d about %s %s/%s: %v", r.Name, i+1, v.Kind, v.Namespace, v.Name, err))
			case first == nil:
				first = answer
			case !proto.Equal(first, answer):
				problems = append(problems, fmt.Sprintf("%s: %s %s/%s: the replicas return %v and %v", r.Name, v.Kind, v.Namespace, v.Name, first, answer))
			}

			for _, l := range answer.GetLocations() {
				if l.GetShard() != v.Shard {
					problems = append(problems, fmt.Sprintf("%s: %s %s/%s: ringquery %d returns %q, the label is %q", r.Name, v.Kind, v.Namespace, v.Name, i+1, l.GetShard(), v.Shard))
				}
			}
		}
	}

	return problems
}

// question returns the request for an object; nil if the owner of a controlled object does not exist.
func (r *ring) question(v check.Version, all []check.Version) *diagnosticsv1alpha1.LocateRequest {
	object := &diagnosticsv1alpha1.ObjectReference{
		Group: record.Resource(v.Kind).Group, Type: &diagnosticsv1alpha1.ObjectReference_Kind{Kind: v.Kind}, Namespace: v.Namespace, Name: v.Name,
	}

	request := &diagnosticsv1alpha1.LocateRequest{Ring: r.Name, Object: object}
	if v.Owner == "" {
		return request
	}

	i := slices.IndexFunc(all, func(o check.Version) bool { return o.UID == v.Owner })
	if i < 0 {
		return nil
	}

	request.Owner = &diagnosticsv1alpha1.OwnerReference{
		Group: record.Resource(all[i].Kind).Group, Type: &diagnosticsv1alpha1.OwnerReference_Kind{Kind: all[i].Kind}, Name: all[i].Name,
	}

	return request
}
