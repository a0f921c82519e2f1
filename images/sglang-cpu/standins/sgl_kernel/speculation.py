"""Draft trees: building, greedy verification, picking what was accepted."""

import torch
from torch import Tensor

FULL_MASK, QUERY_LENGTH_ONLY = 0, 1  # SGLang's TreeMaskMode


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last accepted token of each request."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The KV slots of the accepted tokens, packed."""
    accepted = accept_index.reshape(-1)
    accepted = accepted[accepted > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def rotate_input_ids_cpu(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor, select_index: Tensor | None = None
) -> None:
    """Shifts each request's tokens left by one and puts the next token at the end."""
    for i, (start, count) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if count > 0:
            input_ids[start : start + count - 1] = input_ids[start + 1 : start + count].clone()
            last = int(select_index[i]) if select_index is not None else start + count - 1
            input_ids[last] = topk_index.reshape(-1)[i]


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor, selected_index: Tensor, seq_lens: Tensor, tree_mask: Tensor, positions: Tensor,
    retrieve_index: Tensor, retrieve_next_token: Tensor, retrieve_next_sibling: Tensor,
    topk: int, depth: int, draft_token_num: int, tree_mask_mode: int,
) -> None:  # fmt: skip
    """Lays the selected drafts out as a tree: first child, next sibling, position and visibility of each node."""
    count, mode = draft_token_num, int(tree_mask_mode)
    if mode not in (FULL_MASK, QUERY_LENGTH_ONLY):
        raise NotImplementedError(f"the CPU stand-in has no tree mask mode {mode}")
    flat_mask, mask_start = tree_mask.view(-1), 0
    for b, length in enumerate(seq_lens.tolist()):
        parent = _parents(selected_index[b].tolist()[: count - 1], parent_list[b].tolist() if parent_list.numel() else [], topk)
        retrieve_index[b] = torch.arange(b * count, (b + 1) * count)
        # From the last to the first, so that a node's first child is its likeliest.
        for node in range(count - 1, 0, -1):
            above = parent[node]
            if above < 0:
                continue
            first_child = int(retrieve_next_token[b, above])
            retrieve_next_token[b, above] = node
            if first_child != -1:
                retrieve_next_sibling[b, node] = first_child
        width = count if mode == QUERY_LENGTH_ONLY else length + count
        for node in range(count):
            visible, level, at = torch.zeros(count, dtype=torch.bool), 0, node
            visible[0] = True
            while at > 0:
                visible[at] = True
                at, level = parent[at], level + 1
            positions[b * count + node] = length + level
            end = mask_start + (node + 1) * width
            flat_mask[end - count : end] = visible
        mask_start += count * width


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """Parent of each node; the root is node 0; -1 where the parent itself was not selected (a tie of scores)."""
    parents = [0]
    for index in selected:
        group = index // topk
        if group == 0:
            parents.append(0)
        else:
            parents.append(selected.index(parent_list[group]) + 1 if parent_list[group] in selected else -1)
    return parents


def verify_tree_greedy_cpu(
    predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor, retrive_index: Tensor,
    retrive_next_token: Tensor, retrive_next_sibling: Tensor, target_predict: Tensor,
) -> None:  # fmt: skip
    """Walks each tree as long as a drafted child is what the target says next. The names are passed, and misspelt, by SGLang."""
    tensors = (candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict)
    for b, (drafted, index, child, sibling, target) in enumerate(zip(*(t.tolist() for t in tensors), strict=True)):
        last, accepted = 0, 0
        accept_index[b, 0] = index[0]
        for _ in range(1, accept_index.shape[1]):
            node = child[last]
            while node != -1 and drafted[node] != target[last]:
                node = sibling[node]
            if node == -1:
                break
            predicts[index[last]] = target[last]
            accepted += 1
            accept_index[b, accepted] = index[node]
            last = node
        accept_token_num[b] = accepted
        predicts[index[last]] = target[last]
