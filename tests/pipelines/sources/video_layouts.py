"""Captions of videos and questions about them, as their authors publish them; rows are invented.

Every writer makes one good row at least for each split a test reads, and one that is malformed.
"""

from pathlib import Path

from tests.pipelines.sources.writing import put_json, put_text


def _touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def write_activitynet_cap(root: Path) -> None:
    folder = root / "activitynet_cap"
    told = {
        "duration": 55.15,
        "timestamps": [[13.79, 54.32], [0, 55.15], [0, 55.15], [9, 8.5]],
        "sentences": ["  The coach helps.", " A tutorial.", "Two men.", "Reversed."],
    }
    uneven = {"duration": 9, "timestamps": [[0, 1]], "sentences": ["One.", "Two."]}
    blank = {"duration": 9, "timestamps": [[0, 1]], "sentences": [" "]}
    put_json(folder / "val_1.json", {"v_uqiMw7tQ1Cc": told, "v_uneven": uneven, "v_bare": []})
    put_json(folder / "val_2.json", {"v_uqiMw7tQ1Cc": told, "v_-D0pVkTEYQg": blank})
    put_json(folder / "train.json", {"v_other": {**told, "timestamps": [[0, "1.5"]] * 4}})
    _touch(root / "activitynet/videos/v_other.webm", root / "activitynet/videos/uqiMw7tQ1Cc.mkv")


def write_activitynet_qa(root: Path) -> None:
    folder = root / "activitynet_qa/dataset"
    row = {"video_name": "okC18bPTils", "question": "who runs", "question_id": "v_okC18bPTils_3"}
    other = {**row, "video_name": "v_-x", "question_id": "v_-x_1"}
    put_json(folder / "test_q.json", [row, other, {**row, "question_id": "v_okC18bPTils_4"}])
    answer = {"answer": "no", "type": 3, "question_id": "v_okC18bPTils_3"}
    more = {"answer": 2, "type": 7, "question_id": "v_-x_1"}
    put_json(folder / "test_a.json", [more, answer])


def _msrvtt(path: Path, *videos: tuple[str, str]) -> None:
    rows = [
        {"id": n, "video_id": video, "category": 9, "split": split, "url": "x",
         "start time": 137.72, "end time": 149.44}
        for n, (video, split) in enumerate(videos)
    ]  # fmt: skip
    told = [
        {"sen_id": 20 * n + k, "video_id": video, "caption": f"{video} said {k}"}
        for k in range(20)
        for n, (video, _) in enumerate(videos)
        if video != "video9"
    ]
    put_json(path, {"info": {}, "videos": rows, "sentences": told})


def write_msrvtt_cap(root: Path) -> None:
    folder = root / "msrvtt_cap"
    videos = ("video0", "train"), ("video6513", "validate"), ("video9", "validate")
    _msrvtt(folder / "train_val_videodatainfo.json", *videos)
    _msrvtt(folder / "test_videodatainfo.json", ("video7010", "test"))
    _touch(folder / "TrainValVideo/video0.avi", root / "msrvtt/TestVideo/video7010.mp4")


def write_msrvtt_qa(root: Path) -> None:
    row = {"id": 158_581, "video_id": 6513, "category_id": 14, "question": "who?", "answer": "man"}
    put_json(root / "msrvtt_qa/val_qa.json", [row, {**row, "id": 5, "answer": None}])
    put_json(root / "msrvtt_qa/test_qa.json", [{**row, "video_id": 7010}])
    _touch(root / "msrvtt/TestVideo/video7010.webm", root / "msrvtt/TrainValVideo/video6513.mp4")


def write_msvd_qa(root: Path) -> None:
    folder = root / "msvd_qa"
    _touch(folder / "YouTubeClips/ab_c_1_2.mp4")
    put_text(folder / "youtube_mapping.txt", "ab_c_1_2 vid1\n-x y_3_4 vid2\n\n")
    rows = [
        {"id": 10, "video_id": 1, "question": "who runs?", "answer": "man"},
        {"id": 11, "video_id": 2, "question": "what?", "answer": "dog"},
        {"id": 12, "video_id": 3, "question": "what?", "answer": "dog"},
    ]
    put_json(folder / "val_qa.json", rows)


def write_vatex_cap(root: Path) -> None:
    row = {
        "videoID": "-Xk_7hXF1bA_000015_000025",
        "enCap": [f"A man {n}." for n in range(10)],
        "chCap": ["一个男人。"] * 10,
    }
    bare = {"videoID": "abcdefghijk_000000_000010", "enCap": []}
    put_json(root / "vatex_cap/vatex_validation_v1.0.json", [row, bare])
    test = {key: row[key] for key in ("videoID", "enCap")}
    put_json(root / "vatex_cap/vatex_public_test_english_v1.1.json", [test])
