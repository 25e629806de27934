package admission_test

import "github.com/clusterring/clusterring/services/internal/admission"

// relabeled returns the examples of updates that change the shard label, and those of subresources.
func relabeled() []example {
	abc := state("a", "b", "c")
	atA, drained := labels(shardLabel, "a"), labels(shardLabel, "a", drainLabel, "true")

	status := func(was, is map[string]string) admission.Request {
		r := updating(websites, website(was), website(is))
		r.SubResource = "status"

		return r
	}

	return []example{
		{"another shard", abc, updating(websites, website(atA), website(labels(shardLabel, "b"))), admission.Restored},
		{"no shard's name", abc, updating(websites, website(atA), website(labels(shardLabel, ""))), admission.Restored},
		{"another shard, for a child", abc, updating(configmaps, child(atA), child(labels(shardLabel, "b"))), admission.Restored},
		{"another shard, from one that is gone", state("b", "c"), updating(websites, website(atA), website(labels(shardLabel, "b"))), admission.Restored},
		{"another shard during a drain", abc, updating(websites, website(drained), website(labels(shardLabel, "b", drainLabel, "true"))), admission.Restored},
		{"the shard that the drain names", abc, updating(websites, website(labels(shardLabel, "a", drainLabel, "b")), website(labels(shardLabel, "b"))), admission.Labelled},
		{"another one than the drain names", abc, updating(websites, website(labels(shardLabel, "a", drainLabel, "b")), website(labels(shardLabel, "c"))), admission.Restored},
		{"a shard for an object without one", abc, updating(websites, website(nil), website(atA)), admission.Labelled},
		{"a status with another shard", abc, status(atA, labels(shardLabel, "b")), admission.Restored},
		{"a status without the shard", abc, status(atA, nil), admission.Restored},
		{"a status by which an object is released", abc, status(drained, nil), admission.NotAsked},
		{"a status of an object without a shard", abc, status(nil, nil), admission.NotAsked},
		{"a status", abc, status(atA, atA), admission.Labelled},
		{"a status that cannot be read", abc, admission.Request{Ring: ring, Operation: admission.Update, Resource: websites, SubResource: "status"}, admission.NotAsked},
	}
}
